"""``explain`` and ``request``: decisions of pickers with prices, and what became of a request."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.mistakes import close
from tidegate.cli.options import OutputOption, ReadFlags  # noqa: TC001 - typer reads annotations at runtime
from tidegate.terminal.errors import CliError
from tidegate.terminal.output import Output
from tidegate_api.addresses import PICKER_METRICS_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rich.table import Table


TIMEOUT_S: Final = 5.0
MAX_BYTES: Final = 32 * 2**20
MOST_SHOWN: Final = 64
ROUNDING: Final = 1e-9
MOST_ROWS: Final = 16
"""Maximum number of candidates in a table; JSON contains all."""

REASONS: Final[Mapping[str, str]] = {
    "variant": "it belongs to another variant than the one drawn for the request",
    "protocol": "it has no address for the request's protocol",
    "draining": "it is draining; `tidegate undrain` takes it back",
    "subset": "it is not in the subset that the request's hint allows",
    "device": "it lacks the device that the model requires (the pool's `model_needs`)",
    "memory": "the model is not loaded and its GPU has too little free memory to load it",
    "adapter": "it has not loaded the request's adapter, which the pool requires",
    "at-limit": "it is at its limit of requests in flight (`per_endpoint_in_flight`, `limit`)",
    "ejected": "it is ejected for failures; see `/debug/state` of the picker",
    "not-ready": "its readiness probe fails",
}
"""Explanation of each filter that removes candidates, by its name in ``/debug/explain``."""


class Kept(StrEnum):
    """Requests that a picker keeps longer than others."""

    REFUSALS = "refusals"
    FAILURES = "failures"
    SLOWEST = "slowest"


def explain(
    picker: Annotated[
        str,
        typer.Option(
            "--picker",
            envvar="TIDEGATE_PICKER",
            metavar="HOST:PORT",
            help="Debug address of the picker (`tidegate picker --metrics`).",
        ),
    ] = PICKER_METRICS_ADDRESS,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="NAME", help="Only decisions of this pool.")
    ] = None,
    why_not: Annotated[
        str | None,
        typer.Option("--not", metavar="ENDPOINT", help="Explain why this replica was not picked."),
    ] = None,
    kept: Annotated[
        Kept | None,
        typer.Option("--kept", help="Instead: requests that are kept longer than others."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=1, max=MOST_SHOWN, help="Maximum number of decisions."),
    ] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show sampled decisions of a picker, with each candidate's price and each removal's reason."""
    from tidegate.terminal.output import emit

    if kept is not None:
        records = fetch(picker, pool, kept)[:limit]
        none = [] if records else [f"the picker at {picker} keeps no {kept}"]
        emit(records, [*none, *(part for each in records for part in _record(each))], output)
        return
    found = fetch(picker, pool)[:limit]
    if not found:
        seen = {str(each["pool"]) for each in fetch(picker, None)} if pool else set()
        of = f" of pool {pool}" if pool else ""
        hint = "send a request, or see `tidegate get pools` for the names of pools"
        if seen and pool not in seen:
            hint = close(str(pool), sorted(seen))
        raise CliError(f"the picker at {picker} has sampled no decision{of} yet; {hint}")
    if why_not is not None:
        for each in found:
            each["why_not"] = {"endpoint": why_not, "answer": answer(each, why_not)}
    shown: list[Table | str] = []
    for each in found:
        shown += [_head(each), _candidates(each), *_others(each)]
        if why_not is not None:
            shown.append(f"why not {why_not}? {each['why_not']['answer']}")
    emit(found, shown, output)


def request(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The request's `x-request-id`, or the id of its W3C trace."
        ),
    ],
    *,
    flags: ReadFlags,
) -> None:
    """Show what became of a request: the pick with its prices, who served it, how it ended."""
    import json

    from tidegate.cli.client import ask
    from tidegate.terminal.output import emit

    answer = ask(flags, "GetRequest", request=name)
    silent = f"; no answer from {', '.join(answer.silent)}" if answer.silent else ""
    if not answer.records:
        raise CliError(_unknown(name, [each.since_seconds for each in answer.pickers]) + silent)
    found = [{"picker": each.picker, **json.loads(each.record_json)} for each in answer.records]
    shown: list[Table | str] = []
    for each in found:
        shown += _record(each)
    emit(found, [*shown, *([silent.removeprefix("; ")] if silent else [])], flags.output)


def _unknown(name: str, since_s: Sequence[float]) -> str:
    if not since_s:
        return f"no picker is connected that could be asked for request {name}"
    return (
        f"no picker remembers a request {name}; they remember the latest requests, since "
        f"{min(since_s):.0f} s ago, and failed and slow ones for longer. Envoy's access log "
        "(`listener.access_log`) has older ones"
    )


def _record(record: Mapping[str, Any]) -> list[Table | str]:
    from tidegate.terminal.output import table

    head = (
        f"request {_of(record, 'request_id')}, trace {_of(record, 'trace_id')}, "
        f"{_of(record, 'age_s')} s ago, picker {_of(record, 'picker')}"
    )
    if record.get("refused"):
        told = f"refused: {_of(record, 'refused')}, status {_of(record, 'status')}, pool "
        return [f"{head}\n{told}{_of(record, 'pool')}: {_of(record, 'answer')}"]
    addresses = record.get("addresses") or ()
    where = f"pool {_of(record, 'pool')}/{_of(record, 'variant')}"
    why = f"picked {_of(record, 'picked')} ({_of(record, 'reason')})"
    cached = f"{_of(record, 'predicted_tokens')} of them predicted to be cached"
    lines = [
        head,
        f"{where}: {why}, then {', '.join(map(_plain, addresses[1:])) or '-'}",
        f"prompt {_of(record, 'prompt_tokens')} tokens, {cached}",
    ]
    lines += [
        f"attempt at {_of(each, 'address')}: {_of(each, 'ended')}, status {_of(each, 'status')}"
        for each in record.get("attempts", ())
    ]
    end = record.get("end")
    if end is None:
        lines.append("it has not ended yet, or its end has not been reported")
    else:
        lines.append(
            f"ended {_of(end, 'outcome')}, status {_of(end, 'status')}, served by "
            f"{_of(end, 'served')} at attempt {_of(end, 'attempts')}; first byte after "
            f"{_of(end, 'first_byte_s')} s, end after {_of(end, 'lasted_s')} s"
            + (f"; Envoy answered by itself: {_of(end, 'cause')}" if end.get("cause") else "")
        )
    shown: list[Table | str] = ["\n".join(lines)]
    prices = record.get("candidates") or ()
    if prices:
        rows = [(_of(each, "id"), each.get("price")) for each in prices[:MOST_ROWS]]
        shown.append(table(("candidate", "#price"), rows))
    return shown


def _of(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return "-" if value is None or value == "" else _plain(value)


def _plain(value: object) -> str:
    """Return a value as text that changes nothing on a terminal: callers chose some of it."""
    return "".join(each if each.isprintable() else "?" for each in str(value))


def fetch(picker: str, pool: str | None, kept: str | None = None) -> list[dict[str, Any]]:
    """Return a picker's sampled decisions, newest first, or kept requests of a kind.

    Raises:
        CliError: The picker cannot be reached, or the response is not a list of decisions.
    """
    import http.client
    import json
    from urllib.parse import urlencode

    asked = {key: text for key, text in (("pool", pool), ("kept", kept)) if text}
    query = "?" + urlencode(asked) if asked else ""
    connection: http.client.HTTPConnection | None = None
    try:
        connection = http.client.HTTPConnection(picker, timeout=TIMEOUT_S)
        connection.request("GET", f"/debug/explain{query}")
        with connection.getresponse() as response:
            body = response.read(MAX_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        said = getattr(error, "strerror", None)
        why = f" ({said})" if said else ""
        raise CliError(
            f"cannot reach a picker's debug page at {picker}{why}; set --picker (or "
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
            f"{picker} does not answer as a picker (status {response.status}); set --picker to "
            "the --metrics address of `tidegate picker`"
        )
    return found


def answer(decision: Mapping[str, Any], endpoint: str) -> str:
    """Return one sentence that explains why a replica was not picked."""
    picked = decision["picked"]
    if endpoint == picked:
        return "it was picked"
    candidates = {each["id"]: each for each in decision["candidates"]}
    if endpoint not in candidates:
        return _left_out(decision["removed"], endpoint, candidates)
    if decision["leased"]:
        return "the picked replica holds the state of the request's sequence"
    if picked not in candidates:
        return "the picked replica is not among the listed candidates"
    return _dearer(candidates[endpoint], candidates[picked])


def _left_out(removed: Mapping[str, str] | None, endpoint: str, candidates: Collection[str]) -> str:
    if removed is None:
        return "it was not a candidate; in a pool of this size the reason is not recorded"
    if endpoint in removed:
        return REASONS.get(removed[endpoint], removed[endpoint])
    near = close(endpoint, (*candidates, *removed))
    return f"it was not drawn as a candidate, or the pool has no such replica; {near}"


def _dearer(other: Mapping[str, Any], pick: Mapping[str, Any]) -> str:
    more = other["price"] - pick["price"]
    if more <= 0.0:
        return "its price was the same; the tie was broken at random"
    ours, theirs = pick["parts"], other["parts"]
    by_part = {
        name: theirs.get(name, 0.0) - ours.get(name, 0.0)
        for name in dict.fromkeys([*theirs, *ours])
    }
    differences = ", ".join(
        f"{name} {part:+.4g}"
        for name, part in sorted(by_part.items(), key=lambda item: -abs(item[1]))
        if abs(part) > ROUNDING
    )
    lacks = f"; unmet preferences: {', '.join(other['lacks'])}" if other["lacks"] else ""
    parts = f" ({differences})" if differences else ""
    return f"its price is higher by {more:.4g}{parts}{lacks}"


def _head(decision: Mapping[str, Any]) -> str:
    tokens = decision["tokens"]
    prompt = "no prompt seen" if tokens is None else f"a prompt of about {tokens:.0f} tokens"
    held = f", {decision['matched_blocks']} of its {decision['blocks']} blocks cached by the pick"
    return (
        f"{decision['age_s']:.1f} s ago, pool {decision['pool']}/{decision['variant']}, model "
        f"{decision['model'] or '-'}, {prompt}{held if decision['blocks'] else ''}: policy "
        f"{decision['policy']} picked {decision['picked']} ({decision['reason']})"
    )


def _candidates(decision: Mapping[str, Any]) -> Table:
    from tidegate.terminal.output import table

    rows: Sequence[Mapping[str, Any]] = decision["candidates"][:MOST_ROWS]
    limited = any(each.get("limit") for each in rows)
    return table(
        (
            *("candidate", "#price", "#behind", "#cached", "#pending"),
            *(("limit",) if limited else ()),
            "parts",
        ),
        [
            (
                each["id"],
                each["price"],
                each["behind"],
                each["matched_blocks"],
                each["pending"],
                *((_limit(each),) if limited else ()),
                " ".join(f"{name}={part:.4g}" for name, part in each["parts"].items() if part),
            )
            for each in rows
        ],
    )


def _limit(candidate: Mapping[str, Any]) -> str:
    most = candidate.get("limit")
    return "-" if most is None else f"{most} {candidate['limit_by']}"


def _others(decision: Mapping[str, Any]) -> list[Table | str]:
    from tidegate.terminal.output import table

    more = len(decision["candidates"]) - MOST_ROWS
    shown: list[Table | str] = [f"and {more} more candidates"] if more > 0 else []
    removed: Mapping[str, str] | None = decision["removed"]
    if removed:
        rows = [(name, REASONS.get(why, why)) for name, why in list(removed.items())[:MOST_ROWS]]
        shown.append(table(("removed", "reason"), rows))
    return shown
