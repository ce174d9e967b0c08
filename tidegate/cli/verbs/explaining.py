"""``tidegate explain``: why a picker chose as it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.options import OutputOption  # noqa: TC001 - typer reads annotations at runtime
from tidegate.terminal.errors import CliError
from tidegate.terminal.output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table


DEFAULT_PICKER: Final = "127.0.0.1:18081"
TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 32 * 2**20
MOST_SHOWN: Final = 64
ROUNDING: Final = 1e-9
MOST_ROWS: Final = 16
"""Candidates in a table; JSON has all."""

REASONS: Final[Mapping[str, str]] = {
    "variant": "it belongs to another variant than the one that was drawn",
    "protocol": "it has no address for the request's protocol",
    "draining": "it is draining; `tidegate undrain` takes it back",
    "subset": "it is not in the subset that the request's hint allows",
    "device": "it has not the device that the model requires (the pool's `model_needs`)",
    "memory": "too little of its GPU memory is free for the model, which it has not loaded",
    "adapter": "the request's adapter is not loaded there, and the pool requires it",
    "at-limit": "it is at its limit of requests in flight (`per_endpoint_in_flight`)",
    "ejected": "it is ejected for failures; `/debug/state` of the picker says which",
    "not-ready": "its readiness probe says no",
}
"""What the picker's names of filters mean, and what to do."""


def explain(
    picker: Annotated[
        str,
        typer.Option(
            "--picker",
            envvar="TIDEGATE_PICKER",
            metavar="HOST:PORT",
            help="The picker's debug address (its --metrics).",
        ),
    ] = DEFAULT_PICKER,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="Decisions of this pool only.")
    ] = None,
    why_not: Annotated[
        str | None,
        typer.Option("--not", metavar="ENDPOINT", help="Say why this replica was not chosen."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, max=MOST_SHOWN, help="At most so many decisions."),
    ] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show sampled decisions of a picker: each candidate's price in parts, and who was left out."""
    from tidegate.terminal.output import emit

    found = fetch(picker, pool)[:limit]
    if not found:
        of = f" of pool {pool}" if pool else ""
        raise CliError(
            f"the picker at {picker} has sampled no decision{of} yet; send a request, or look at "
            "`tidegate get pools` for the names"
        )
    if why_not is not None:
        for each in found:
            each["why_not"] = {"endpoint": why_not, "answer": answer(each, why_not)}
    shown: list[Table | str] = []
    for each in found:
        shown += [_head(each), _candidates(each), *_others(each)]
        if why_not is not None:
            shown.append(f"why not {why_not}? {each['why_not']['answer']}")
    emit(found, shown, output)


def fetch(picker: str, pool: str | None) -> list[dict[str, Any]]:
    """Return a picker's sampled decisions, the newest first.

    Raises:
        CliError: It cannot be reached, or answers something else.
    """
    import http.client
    import json
    from urllib.parse import urlencode

    query = "?" + urlencode({"pool": pool}) if pool else ""
    connection: http.client.HTTPConnection | None = None
    try:
        connection = http.client.HTTPConnection(picker, timeout=TIMEOUT_S)
        connection.request("GET", f"/debug/explain{query}")
        with connection.getresponse() as response:
            body = response.read(MAX_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CliError(
            f"cannot reach a picker's debug page at {picker} ({error}); set --picker (or "
            "TIDEGATE_PICKER) to the --metrics address of `tidegate picker`"
        ) from error
    finally:
        if connection is not None:
            connection.close()
    try:
        found = json.loads(body) if response.status == http.client.OK else None
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise CliError(
            f"{picker} does not answer as a picker (status {response.status}); --picker wants the "
            "--metrics address of `tidegate picker`"
        )
    return found


def answer(decision: Mapping[str, Any], endpoint: str) -> str:
    """Say in one sentence why a replica was not the pick."""
    picked = decision["picked"]
    if endpoint == picked:
        return "it was the pick"
    candidates = {each["id"]: each for each in decision["candidates"]}
    if endpoint not in candidates:
        return _left_out(decision["removed"], endpoint)
    if decision["leased"]:
        return "the sequence's state lives in the pick"
    if picked not in candidates:
        return "the pick is not among the candidates that are listed"
    return _dearer(candidates[endpoint], candidates[picked])


def _left_out(removed: Mapping[str, str] | None, endpoint: str) -> str:
    if removed is None:
        return "it was no candidate; in so large a pool it is not looked at why"
    if endpoint in removed:
        return REASONS.get(removed[endpoint], removed[endpoint])
    return "it was not drawn as a candidate, or the pool has no such replica"


def _dearer(other: Mapping[str, Any], pick: Mapping[str, Any]) -> str:
    more = other["price"] - pick["price"]
    if more <= 0.0:
        return "its price was the same, and chance decided"
    ours, theirs = pick["parts"], other["parts"]
    by_part = {
        name: theirs.get(name, 0.0) - ours.get(name, 0.0)
        for name in dict.fromkeys([*theirs, *ours])
    }
    told = ", ".join(
        f"{name} {part:+.4g}"
        for name, part in sorted(by_part.items(), key=lambda item: -abs(item[1]))
        if abs(part) > ROUNDING
    )
    lacks = f"; it lacks what is preferred: {', '.join(other['lacks'])}" if other["lacks"] else ""
    return f"its price is higher by {more:.4g}" + (f" ({told})" if told else "") + lacks


def _head(decision: Mapping[str, Any]) -> str:
    tokens = decision["tokens"]
    prompt = "no prompt seen" if tokens is None else f"a prompt of some {tokens:.0f} tokens"
    held = f", {decision['matched_blocks']} of its {decision['blocks']} blocks held by the pick"
    return (
        f"{decision['age_s']:.1f} s ago, pool {decision['pool']}/{decision['variant']}, model "
        f"{decision['model'] or '-'}, {prompt}{held if decision['blocks'] else ''}: policy "
        f"{decision['policy']} chose {decision['picked']} ({decision['reason']})"
    )


def _candidates(decision: Mapping[str, Any]) -> Table:
    from tidegate.terminal.output import table

    rows: Sequence[Mapping[str, Any]] = decision["candidates"][:MOST_ROWS]
    return table(
        ("candidate", "#price", "#behind", "#held", "#pending", "parts"),
        [
            (
                each["id"],
                each["price"],
                each["behind"],
                each["matched_blocks"],
                each["pending"],
                " ".join(f"{name}={part:.4g}" for name, part in each["parts"].items() if part),
            )
            for each in rows
        ],
    )


def _others(decision: Mapping[str, Any]) -> list[Table | str]:
    from tidegate.terminal.output import table

    more = len(decision["candidates"]) - MOST_ROWS
    shown: list[Table | str] = [f"and {more} more candidates"] if more > 0 else []
    removed: Mapping[str, str] | None = decision["removed"]
    if removed:
        rows = [(name, REASONS.get(why, why)) for name, why in list(removed.items())[:MOST_ROWS]]
        shown.append(table(("left out", "because"), rows))
    return shown
