"""The verb ``status``: one word for the state of the whole, why, and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.options import WatchFlags  # noqa: TC001 - typer reads annotations at runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table
    from rich.text import Text

EXIT_CODES: Final = {"OK": 0, "DEGRADED": 1, "OUTAGE": 2}
"""Exit codes of ``--check`` by the verdict."""
NOT_KNOWN: Final = 3
"""Exit code of ``--check`` where the control server does not answer, or tells no verdict."""

CheckOption = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Exit with 0 for OK, 1 for DEGRADED, 2 for OUTAGE, 3 where it is not known.",
    ),
]


def status(*, check: CheckOption = False, flags: WatchFlags) -> None:
    """Say whether all is well and why not: replicas, requests, clients, the fleet in force."""
    from tidegate.terminal.errors import CliError

    try:
        word = _show(flags)
    except CliError as error:
        if check:
            raise CliError(error.message, NOT_KNOWN) from error
        raise
    if check:
        raise typer.Exit(EXIT_CODES.get(word, NOT_KNOWN))


def _show(flags: WatchFlags) -> str:
    """Print the status and return the verdict; empty = an older control server tells none."""
    from rich.text import Text

    from tidegate.cli import views
    from tidegate.cli.client import ask
    from tidegate.cli.verbs.reading import clients_table, lacking_lines
    from tidegate.terminal.output import emit

    answer = ask(flags, "GetStatus")
    data = views.status(answer)
    head = f"revision {data['revision']}, " + (
        "settled" if data["settled"] else "a change is under way"
    )
    shown: list[Table | str | Text] = [head]
    if data["verdict"]:
        shown[:0] = _opening(data)
    shown.extend(Text(one) for one in data["canaries"])
    if data["refusal"]:
        shown.append(data["refusal"])
    if data["file_error"]:
        shown.append(f"the fleet file on disk is not in force: {data['file_error']}")
    if data["store_error"]:
        shown.append(f"revisions cannot be stored: {data['store_error']}")
    if data["unwritten"]:
        numbers = ", ".join(map(str, data["unwritten"]))
        shown.append(f"held in memory only, lost by a restart: revision {numbers}")
    shown.extend(f"warning: {one}" for one in data["warnings"])
    shown += [
        f"{picker} had no pick for {count} requests: {reason}"
        for picker, reasons in data["passes"].items()
        for reason, count in sorted(reasons.items())
    ]
    shown.extend(_found_lines(data))
    shown.append(clients_table(data["clients"]) if data["clients"] else "no client is connected")
    if any(one["message"] for client in data["clients"] for one in client["types"]):
        shown.append(_messages_table(data["clients"]))
    shown.extend(lacking_lines(data["clients"]))
    if data["refused"]:
        shown.append(_refused_table(data["refused"]))
    if data["sick"]:
        shown.append(_sick_table(data["sick"]))
    shown.extend(Text(f"differs from the fleet file applied last: {one}") for one in data["drift"])
    emit(data, shown, flags.output)
    return str(data["verdict"] or "")


def _opening(data: dict[str, Any]) -> list[Table | str | Text]:
    """Return the verdict with its reasons, and the pools."""
    from rich.text import Text

    shown: list[Table | str | Text] = [Text(f"{data['verdict']}: {data['why']}")]
    if data["reasons"][1:]:
        shown.append(Text("\n".join(data["reasons"][1:])))
    if data["pools"]:
        shown.append(_pools_table(data["pools"]))
    refusals = [
        f"pool {row['pool']}: {count} requests refused in the last minute: {reason}"
        for row in data["pools"]
        for reason, count in sorted(row["refused"].items())
    ]
    lines = [*(line for row in data["pools"] for line in _queue_lines(row)), *refusals]
    return [*shown, Text("\n".join(lines))] if lines else shown


def _queue_lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield what waits of a pool, and how long requests have waited in the last minute."""
    from tidegate.cli.views import seconds

    queue = row["queue"]
    if queue["waiting"]:
        wait = seconds(queue["wait_seconds"])
        expected = "" if wait is None else f"; one that comes now is expected to wait {wait}"
        yield f"pool {row['pool']}: {queue['waiting']} requests wait in pickers{expected}"
    if queue["ended"]:
        p50, p99 = seconds(queue["queued_p50"]), seconds(queue["queued_p99"])
        yield (
            f"pool {row['pool']}: {queue['ended']} requests waited in the last minute,"
            f" p50 {p50}, p99 {p99}"
        )


def _pools_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.cli.views import seconds
    from tidegate.terminal.output import table

    return table(
        ("pool", "variant", "usable", "#requests/s", "#errors", "#first byte", "#p50", "#p99"),
        [
            (
                row["pool"] if first else " ",
                each["variant"],
                f"{each['usable']} of {each['replicas']} usable",
                _rate(each["requests_per_second"]),
                each["errors"],
                seconds(each["first_byte_p50"]),
                seconds(each["duration_p50"]),
                seconds(each["duration_p99"]),
            )
            for row in rows
            for first, each in zip(
                [True] + [False] * len(row["variants"]), row["variants"], strict=False
            )
        ],
    )


def _rate(per_second: float | None) -> str | None:
    return None if per_second is None else f"{per_second:.1f}"


def _sick_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.terminal.output import table

    return table(
        ("pool", "sick replica", "conditions", "#pickers", "published"),
        [
            (
                row["pool"],
                row["endpoint"],
                row["conditions"],
                row["pickers"],
                "yes" if row["told"] else "no",
            )
            for row in rows
        ],
    )


def _found_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with replicas that sources find."""
    for one in data["held"]:
        left = one["left_seconds"]
        until = "until this is confirmed" if left is None else f"for {left} s, or until confirmed"
        yield (
            f"pool {one['pool']}: {len(one['endpoints'])} of {one['of']} replicas have vanished and"
            f" stay {until}: tidegate confirm {one['pool']}"
        )
    for one in data["sources"]:
        if one["trouble"]:
            yield f"pool {one['pool']}: {one['source']}: {one['trouble']}"
    yield from (f"left out: {reason}" for reason in data["left_out"])


def _messages_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.terminal.output import table

    return table(
        ("client", "type", "state", "message"),
        [
            (row["client"], one["type"], one["state"], one["message"])
            for row in rows
            for one in row["types"]
            if one["message"]
        ],
    )


def _refused_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.terminal.output import table

    return table(
        ("refused peer", "node", "why", "#times"),
        [(row["peer"], row["node"], row["reason"], row["count"]) for row in rows],
    )
