"""Verbs that tune a running pool: ``breaker``, ``slow-start``, ``shed``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.mistakes import MAX_SHOWN, close
from tidegate.cli.options import ChangeFlags  # noqa: TC001 - typer reads annotations at runtime
from tidegate.cli.verbs.changing import perform
from tidegate_api.pools import DURATION_UNITS_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.message import Message

BREAKER: Final = {
    "max-connections": "max_connections",
    "max-pending": "max_pending",
    "max-requests": "max_requests",
    "connections-per-endpoint": "max_connections_per_endpoint",
    "per-endpoint": "per_endpoint_in_flight",
    "retry-percent": "retry_budget_percent",
    "min-retries": "min_retries",
}
"""Name on the command line -> field of ``circuit_breaker``."""

SLOW_START: Final = {
    "window": "window",
    "aggression": "aggression",
    "min": "min_weight_percent",
}
"""Name on the command line -> field of ``slow_start``."""

_NUMBER = re.compile(rf"([0-9]{{1,12}}(?:\.[0-9]{{1,9}})?)({'|'.join(DURATION_UNITS_S)})?")


def breaker(
    pool: Annotated[str, typer.Argument(help="Name of the pool.")],
    limits: Annotated[
        list[str],
        typer.Argument(metavar="LIMIT=N...", help=f"Limits: {', '.join(BREAKER)}."),
    ],
    *,
    change: ChangeFlags,
) -> None:
    """Set circuit-breaker limits of a pool; limits that are not named stay unchanged."""
    from tidegate_api.admin.v1.admin_pb2 import SetBreakerRequest

    perform(change, "SetBreaker", pool=pool, **parse_settings(limits, BREAKER, SetBreakerRequest))


def slow_start(
    pool: Annotated[str, typer.Argument(help="Name of the pool.")],
    ramp: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=N...",
            help="Fields: window (such as 30s), aggression (exponent), min (percent).",
        ),
    ],
    *,
    change: ChangeFlags,
) -> None:
    """Set the slow start of a pool's new replicas; fields that are not named stay unchanged."""
    from tidegate_api.admin.v1.admin_pb2 import SetSlowStartRequest

    fields = parse_settings(ramp, SLOW_START, SetSlowStartRequest)
    perform(change, "SetSlowStart", pool=pool, **fields)


def shed(
    pool: Annotated[str, typer.Argument(help="Name of the pool.")],
    percent: Annotated[
        float, typer.Argument(min=0, max=100, help="Percentage of requests to reject; 0 = none.")
    ],
    *,
    change: ChangeFlags,
) -> None:
    """Reject a percentage of a pool's requests with status 503, in an overload."""
    perform(change, "SetDropOverload", pool=pool, percent=percent)


def parse_settings(
    words: list[str], known: Mapping[str, str], request: type[Message]
) -> dict[str, Any]:
    """Parse arguments of the form ``NAME=N`` into values by field.

    Only ``window`` takes a unit of time (ms, s, m, h); its value is in seconds.

    Raises:
        typer.BadParameter: An argument is not of this form, its name is not in ``known``, its
            number is invalid, or a name occurs twice.
    """
    values: dict[str, float] = {}
    for word in words:
        name, equals, text = word.partition("=")
        field = known.get(name)
        if not equals:
            raise typer.BadParameter(f"{word!r}: write NAME=N; names are {', '.join(known)}")
        if field is None:
            raise typer.BadParameter(f"no '{name[:MAX_SHOWN]}' to set; {close(name, known)}")
        if field in values:
            raise typer.BadParameter(f"{name!r} is named twice")
        number = _NUMBER.fullmatch(text)
        if number is None or (number[2] and field != "window"):
            raise typer.BadParameter(f"{word!r}: {text!r} is not a number")
        kind = request.DESCRIPTOR.fields_by_name[field]
        if kind.cpp_type == kind.CPPTYPE_DOUBLE:
            values[field] = float(number[1]) * DURATION_UNITS_S[number[2] or "s"]
        elif "." in number[1] or int(number[1]) >= 2**32:
            raise typer.BadParameter(f"{word!r}: write a whole number below {2**32}")
        else:
            values[field] = int(number[1])
    return values
