"""Verbs that change the fleet: ``apply``, ``weight``, ``drain``, ``confirm``, ``rollback``."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.options import (  # noqa: TC001 - typer reads annotations at runtime
    ChangeFlags,
    ForcedFlags,
    ReadFlags,
)
from tidegate.terminal.errors import REJECTED, UNFINISHED, CliError
from tidegate_api.pools import MAX_WEIGHT_SUM

PRINTED_AT: Final = "# Fleet of revision "
"""How the first line of a fleet begins that ``tidegate get fleet`` prints."""

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidegate.cli.stopping import StopAnswer
    from tidegate_api.admin.v1.admin_pb2 import ChangeResult
    from tidegate_api.admin.v1.admin_pb2_grpc import AdminStub


def apply(
    fleet: Annotated[
        str, typer.Option("--file", "-f", metavar="FLEET", help="Fleet file; `-` reads stdin.")
    ],
    *,
    change: ForcedFlags,
) -> None:
    """Apply a fleet file as one new revision.

    A file that `tidegate get fleet` has printed is based on the revision in its first line.
    """
    from tidegate.cli.verbs.files import read_text

    text, source = read_text(fleet)
    options = change.to_proto()
    options.based_on = options.based_on or printed_at(text)
    perform(change, "Apply", fleet=text, source=source, options=options)
    if change.dry_run:
        _validate_with_envoy(text, source)


def weight(
    pool: Annotated[str, typer.Argument(help="Name of the pool.")],
    weights: Annotated[
        list[str],
        typer.Argument(
            metavar="VARIANT=W...",
            help="Weights, whole numbers from 0; variants that are not named keep theirs.",
        ),
    ],
    *,
    change: ForcedFlags,
) -> None:
    """Set the traffic weights of a pool's variants, for example for a canary."""
    perform(change, "SetWeights", pool=pool, weights=parse_weights(weights))


def drain(
    endpoint: Annotated[str, typer.Argument(help="Endpoint id in all pools, or POOL/ID in one.")],
    *,
    change: ForcedFlags,
) -> None:
    """Send no new requests to a replica, and wait until it is safe to stop."""
    from tidegate.cli.stopping import until_safe

    until = time.monotonic() + change.timeout

    def safe(stub: AdminStub) -> StopAnswer | None:
        return until_safe(stub, endpoint, until)

    perform(change, "SetDraining", safe, endpoint=endpoint, draining=True)


def undrain(
    endpoint: Annotated[str, typer.Argument(help="Endpoint id in all pools, or POOL/ID in one.")],
    *,
    change: ChangeFlags,
) -> None:
    """Return a drained replica to service."""
    perform(change, "SetDraining", endpoint=endpoint, draining=False)


def promote(
    endpoint: Annotated[str, typer.Argument(help="Endpoint id in all pools, or POOL/ID in one.")],
    *,
    change: ChangeFlags,
) -> None:
    """Take a standby into use; its load ramps up."""
    perform(change, "SetStandby", endpoint=endpoint, standby=False)


def demote(
    endpoint: Annotated[str, typer.Argument(help="Endpoint id in all pools, or POOL/ID in one.")],
    *,
    change: ForcedFlags,
) -> None:
    """Make a replica a standby: it keeps its models, and takes no new requests."""
    perform(change, "SetStandby", endpoint=endpoint, standby=True)


def confirm(
    pool: Annotated[str, typer.Argument(help="Pool whose vanished replicas are held.")],
    *,
    flags: ReadFlags,
) -> None:
    """Let replicas go that vanished from their source and are held."""
    from tidegate.cli.client import ask
    from tidegate.terminal.output import emit

    count = ask(flags, "Confirm", pool=pool).endpoints
    many = "replica drains" if count == 1 else "replicas drain"
    shown = f"{count} {many} and leave" if count else f"pool {pool} holds no replicas"
    emit({"pool": pool, "endpoints": count}, [shown], flags.output)


def rollback(
    revision: Annotated[int, typer.Argument(min=1, help="Revision to restore.")],
    *,
    change: ForcedFlags,
) -> None:
    """Apply the fleet of an earlier revision as a new revision."""
    perform(change, "Rollback", revision=revision)


def printed_at(text: str) -> int:
    """Return the revision at which ``tidegate get fleet`` printed a file; 0 = it says none."""
    found = re.match(re.escape(PRINTED_AT) + r"(\d{1,18})\b", text, re.ASCII)
    return int(found[1]) if found else 0


def parse_weights(words: list[str]) -> dict[str, int]:
    """Parse arguments of the form ``VARIANT=W``.

    Raises:
        typer.BadParameter: An argument is not of this form, its weight exceeds ``MAX_WEIGHT_SUM``,
            or a variant is named twice.
    """
    weights: dict[str, int] = {}
    for word in words:
        variant, equals, number = word.partition("=")
        if not variant or not equals or not number.isascii() or not number.isdigit():
            raise typer.BadParameter(f"{word!r} is not a weight; write VARIANT=W, e.g. canary=10")
        if int(number) > MAX_WEIGHT_SUM:
            raise typer.BadParameter(f"{word!r}: a weight is at most {MAX_WEIGHT_SUM}")
        if variant in weights:
            raise typer.BadParameter(f"variant {variant!r} is named twice")
        weights[variant] = int(number)
    return weights


def outcome_lines(result: ChangeResult, change: ChangeFlags) -> list[str]:
    """Return the report of a change, one fact per line."""
    kept = [f"kept: {one}" for one in result.kept]
    if not result.changes:
        return [f"nothing to change; revision {result.revision} is in force", *kept]
    lines = [f"  {one}" for one in result.changes] + kept
    if change.dry_run:
        from tidegate.cli import views

        told = views.preview_lines(result.preview) if result.HasField("preview") else ()
        return ["dry run, nothing was changed; apply would change:", *lines, *told]
    lines.insert(0, f"revision {result.revision}:")
    if result.channels:
        lines.append(f"sent over {', '.join(result.channels)}")
    if not change.wait:
        lines.append("did not wait for clients; follow the change with `tidegate status`")
    elif not result.clients:
        lines.append("no client is connected; clients receive the change when they connect")
    else:
        took = f" in {result.elapsed_ms:.0f} ms" if result.HasField("elapsed_ms") else ""
        lines.append(f"acknowledged by {result.acked} of {result.clients} clients{took}")
    lines += [
        f"{one.client}: {one.type} {one.state}: {one.message}".rstrip(": ")
        for one in result.problems
    ]
    return lines


def failure(result: ChangeResult, change: ChangeFlags) -> CliError | None:
    """Return why a change with ``--wait`` is not applied everywhere, or ``None`` if it is."""
    if change.dry_run or not change.wait or not result.changes:
        return None
    if result.outcome == "abandoned":
        return CliError(
            f"revision {result.revision} was rejected and is not in force; the last good fleet is "
            "restored as a new revision, see `tidegate status` and `tidegate history`",
            REJECTED,
        )
    if result.problems:
        names = ", ".join(sorted({one.client for one in result.problems}))
        rejected = any(one.state == "NACKED" for one in result.problems)
        return CliError(
            f"revision {result.revision} is not in force everywhere: {names} did not accept it; "
            "see `tidegate status`; `tidegate rollback` restores an earlier revision",
            REJECTED if rejected else UNFINISHED,
        )
    if result.acked < result.clients:
        return CliError(
            f"{result.acked} of {result.clients} clients have acknowledged revision "
            f"{result.revision} after {change.timeout:g} s; the change continues, follow it "
            "with `tidegate status`",
            UNFINISHED,
        )
    return None


def _validate_with_envoy(text: str, source: str) -> None:
    """Validate a fleet that the server accepted with the installed Envoy, if there is one.

    Raises:
        CliError: Envoy rejects it.
    """
    from tidegate.cli import envoy_check
    from xds_server.fleet.load import FleetError, load_text

    binary = envoy_check.find_envoy()
    if binary is None:
        return
    try:
        fleet = load_text(text, source)
    except FleetError as error:  # the command line and the server have different versions
        raise CliError(str(error)) from error
    envoy_check.hold(fleet, source, binary)


def perform(
    change: ChangeFlags,
    call: str,
    then: Callable[[AdminStub], StopAnswer | None] = lambda _: None,
    **fields: Any,
) -> None:
    """Call the admin API and print the outcome.

    Args:
        change: The options.
        call: The call's name, such as ``SetWeights``.
        then: Waits for what follows from it, unless it failed or is not waited for.
        fields: Of its request; its options follow from ``change`` unless they are given.

    Raises:
        CliError: The call failed, or the change is not applied everywhere (see ``failure``), or
            what follows from it did not come.
    """
    from tidegate.cli import views
    from tidegate.cli.client import CHANGE_MARGIN_S, READ_TIMEOUT_S, admin, request_of
    from tidegate.terminal.output import emit, spinner

    request = request_of(call, **{"options": change.to_proto(), **fields})
    waits = change.wait and not change.dry_run
    bound = CHANGE_MARGIN_S + (change.timeout if waits else min(change.timeout, READ_TIMEOUT_S))
    connected = admin(change.server, change.tls, change=not change.dry_run)
    with connected as stub, spinner("waiting for the clients to acknowledge"):
        result = getattr(stub, call)(request, timeout=bound)
        error = failure(result, change)
        stopped = then(stub) if waits and error is None else None
    data, lines = views.change(result, dry_run=change.dry_run), outcome_lines(result, change)
    if stopped is not None:
        data |= stopped.data
        lines += stopped.lines
        error = stopped.error
    emit(data, ["\n".join(lines)], change.output)
    if error is not None:
        raise error
