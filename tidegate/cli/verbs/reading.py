"""Read-only verbs: ``get``, ``history``, ``diff``."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tidegate.cli.options import (
    ReadFlags,  # noqa: TC001 - typer reads annotations at runtime
    WatchFlags,  # noqa: TC001 - typer reads annotations at runtime
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.table import Table

    from tidegate_api.admin.v1.admin_pb2 import GetFleetResponse, ReplicaStatus
    from tidegate_api.admin.v1.admin_pb2_grpc import AdminStub

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000

MAX_COLUMNS: Final = 8
"""Most replicas that are shown as columns; more are listed in one."""
UNKNOWN: Final = "unknown"


class What(StrEnum):
    """Kinds of objects that ``get`` lists."""

    POOLS = "pools"
    ENDPOINTS = "endpoints"
    CLIENTS = "clients"
    MODELS = "models"
    TRAFFIC = "traffic"
    REVISIONS = "revisions"
    FLEET = "fleet"


LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=MAX_LIMIT, help="Maximum number of revisions.")
]


def get(
    what: Annotated[What, typer.Argument(help="Kind of objects to list.")],
    *,
    flags: WatchFlags,
) -> None:
    """List what the control server knows, or print its fleet as a file that `apply` takes.

    Models are shown by replica: which has which, in which state, as pickers found. Traffic is that
    of the last hour, by minute and variant.
    """
    from tidegate.cli import views
    from tidegate.cli.client import ask
    from tidegate.terminal.output import emit

    rows: list[dict[str, Any]]
    shown: Iterable[Table | str]
    if what is What.POOLS:
        rows = views.pools(ask(flags, "GetFleet"))
        shown = [_pools_table(rows)]
    elif what is What.ENDPOINTS:
        rows = _endpoints(flags)
        shown = [_endpoints_table(rows)]
        if any(row["minute"] or row["limits"] for row in rows):
            shown = [*shown, _times_table(rows)]
    elif what is What.FLEET:
        _print_fleet(ask(flags, "GetFleet"), flags)
        return
    elif what is What.MODELS:
        rows = [views.row_of(each, 1) for each in ask(flags, "GetModels").models]
        shown = [matrix(rows)]
    elif what is What.TRAFFIC:
        rows = views.minutes(ask(flags, "GetTraffic").minutes)
        shown = [_traffic_table(rows)]
    elif what is What.CLIENTS:
        rows = views.clients(ask(flags, "GetStatus"))
        shown = [clients_table(rows), *lacking_lines(rows)]
    else:
        rows = views.revisions(ask(flags, "ListRevisions", limit=DEFAULT_LIMIT).revisions)
        shown = [_revisions_table(rows)]
    emit(rows, shown, flags.output)


def _endpoints(flags: WatchFlags) -> list[dict[str, Any]]:
    """Return the replicas with what pickers report, asked over one connection."""
    from tidegate.cli import views
    from tidegate.cli.client import READ_TIMEOUT_S, admin, request_of

    with admin(flags.server, flags.tls) as stub:
        status = stub.GetStatus(request_of("GetStatus"), timeout=READ_TIMEOUT_S)
        fleet = stub.GetFleet(request_of("GetFleet"), timeout=READ_TIMEOUT_S)
        written = views.endpoints(fleet, pickers=views.reporting(status))
        return views.with_states(written, replica_states(stub, READ_TIMEOUT_S))


def _print_fleet(answer: GetFleetResponse, flags: WatchFlags) -> None:
    """Print the fleet in force, as a file that `apply` takes; as YAML unless JSON is asked for."""
    import json

    from tidegate.cli.verbs.changing import PRINTED_AT
    from tidegate.terminal.output import Output, emit

    as_json = flags.output is Output.JSON
    if not as_json:
        sys.stdout.write(
            f"{PRINTED_AT}{answer.revision}: apply is refused if another is in force.\n"
        )
    emit(json.loads(answer.fleet_json), (), Output.JSON if as_json else Output.YAML)


def replica_states(stub: AdminStub, timeout_s: float) -> list[ReplicaStatus]:
    """Return the states of replicas; none from a control server that does not know the call."""
    import grpc

    from tidegate_api.admin.v1 import admin_pb2 as api

    try:
        return list(stub.GetReplicas(api.GetReplicasRequest(), timeout=timeout_s).replicas)
    except grpc.RpcError as error:
        # The error of a unary call is also a grpc.Call; the type stubs do not declare it.
        if cast("grpc.Call", error).code() is grpc.StatusCode.UNIMPLEMENTED:
            return []
        raise


def history(
    limit: LimitOption = DEFAULT_LIMIT,
    *,
    flags: WatchFlags,
) -> None:
    """List revisions of the fleet, newest first, with author, reason, changes and outcome.

    Between them stand the begin and the end of loads and unloads of models; `tidegate model list
    NUMBER` shows the steps of one.
    """
    from tidegate.cli.client import ask
    from tidegate.cli.verbs.loading.operations import in_history
    from tidegate.terminal.output import emit

    answer = ask(flags, "ListRevisions", limit=limit)
    rows = in_history(answer.revisions, answer.operations)
    emit(rows, [_revisions_table(rows)], flags.output)


def _pools_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.terminal.output import table

    return table(
        ("pool", "models", "policy", "variant", "#weight", "#share", "version", "#endpoints"),
        [
            (
                row["pool"] if first else " ",
                row["models"] if first else " ",
                row["policy"] if first else " ",
                variant["variant"],
                variant["weight"],
                _share(variant["weight"], sum(one["weight"] for one in row["variants"])),
                variant["model_version"],
                variant["endpoints"],
            )
            for row in rows
            for first, variant in zip(
                [True] + [False] * len(row["variants"]), row["variants"], strict=False
            )
        ],
    )


def _share(weight: int, total: int) -> str | None:
    return f"{100 * weight / total:.4g}%" if total else None


def _endpoints_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.terminal.output import table

    found = any(row["from"] != "fleet" for row in rows)
    aged = any(row["pickers"] for row in rows)
    titles = ("endpoint", "pool", "variant", "http", "grpc", "state", "#in flight")
    return table(
        (*titles, *(("#age",) if aged else ()), *(("from",) if found else ())),
        [
            (
                row["endpoint"],
                row["pool"],
                row["variant"],
                row["http"],
                row["grpc"],
                row["state"],
                row["in_flight"],
                *((_age(row["age_seconds"]),) if aged else ()),
                *((row["from"],) if found else ()),
            )
            for row in rows
        ],
    )


def _limits(limits: list[dict[str, Any]]) -> str | None:
    """Return the limits of a replica with their sources; ``None`` = there is none."""
    return (
        ", ".join(
            f"{each['model'] + ': ' if each['model'] else ''}{each['most']} {each['source']}"
            for each in limits
        )
        or None
    )


def _times_table(rows: list[dict[str, Any]]) -> Table:
    """Return the requests of the last minute, how long they took on average, and limits."""
    from tidegate.terminal.output import table

    titles = ("endpoint", "#requests", "#errors", "#first byte", "#mean", "#peers", "#hour")
    limited = any(row["limits"] for row in rows)
    return table(
        (*titles, *(("limit",) if limited else ())),
        [
            (
                row["endpoint"],
                row["requests"],
                row["errors"],
                _mean(row["minute"], "first_byte_seconds"),
                *(_mean(row[each]) for each in ("minute", "peers", "hour")),
                *((_limits(row["limits"]),) if limited else ()),
            )
            for row in rows
        ],
    )


def _mean(times: dict[str, Any] | None, what: str = "duration_seconds") -> str | None:
    from tidegate.cli.views import seconds

    return None if times is None else seconds(times[what])


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.1f} s"


def _traffic_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.cli.views import seconds
    from tidegate.terminal.output import table

    return table(
        ("pool", "variant", "#minutes ago", "#requests", "#errors", "#p50", "#p99", "#cached"),
        [
            (
                row["pool"],
                row["variant"],
                int(row["age_seconds"] // 60),
                row["requests"],
                row["errors"],
                seconds(row["duration_p50"]),
                seconds(row["duration_p99"]),
                row["cached"],
            )
            for row in rows
        ],
    )


def lacking_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a paragraph per older Envoy: what does not work with it."""
    for row in rows:
        if row["lost"]:
            head = f"{row['client']} is Envoy {row['build']} and is not sent what that refuses; so:"
            yield "\n".join((head, *(f"- {lost}" for lost in row["lost"])))


def clients_table(rows: list[dict[str, Any]]) -> Table:
    """Return a table of clients and what they have acknowledged."""
    from tidegate.terminal.output import table

    return table(
        ("client", "kind", "xds", "peer", "#connected", "state", "acknowledged"),
        [
            (
                row["client"],
                row["kind"],
                row["protocol"],
                row["peer"],
                f"{row['connected_seconds']:.0f} s",
                row["state"],
                " ".join(
                    f"{one['type']}:{one['resources']}"
                    if one["state"] == "SYNCED"
                    else f"{one['type']}:{one['state']}"
                    for one in row["types"]
                ),
            )
            for row in rows
        ],
    )


def _revisions_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.terminal.output import table

    return table(
        ("#revision", "at", "author", "reason", "changes", "outcome"),
        [
            (
                row["revision"],
                row["at"],
                row["author"],
                row["reason"],
                _short(row["changes"]),
                row["outcome"],
            )
            for row in rows
        ],
    )


def _short(changes: list[str], most: int = 3) -> str:
    more = len(changes) - most
    return "\n".join(changes[:most] + ([f"and {more} more"] if more > 0 else []))


def diff(
    old: Annotated[
        int | None,
        typer.Argument(min=1, metavar="[OLD]", help="Revision; see `tidegate history`."),
    ] = None,
    new: Annotated[
        int | None,
        typer.Argument(min=1, metavar="[NEW]", help="Revision; default: the one in force."),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FLEET",
            help="Compare this fleet file with the fleet in force; `-` reads stdin.",
        ),
    ] = None,
    *,
    flags: ReadFlags,
) -> None:
    """Show the differences of two revisions, or what a fleet file would change."""
    from tidegate.cli.client import ask
    from tidegate.cli.verbs.files import dry_run, read_text
    from tidegate.terminal.output import emit

    if (old is None) == (fleet is None):
        raise typer.BadParameter("name a revision to compare from, or a file with -f")
    if fleet is not None:
        changes = dry_run(flags.server, *read_text(fleet), flags.tls, force=True)
    else:
        changes = list(ask(flags, "Diff", old_revision=old or 0, new_revision=new or 0).changes)
    emit({"changes": changes}, ["\n".join(changes) or "no difference"], flags.output)


def matrix(rows: list[dict[str, Any]]) -> Table:
    """Return a table of models by replicas."""
    from tidegate.terminal.output import table

    places: dict[tuple[str, str, str | None], dict[str, dict[str, Any]]] = {}
    for row in rows:
        places.setdefault((row["pool"], row["model"], row["version"]), {})[row["endpoint"]] = row
    replicas = sorted({row["endpoint"] for row in rows})
    wide = len(replicas) <= MAX_COLUMNS
    return table(
        ("pool", "model", "version", "ready", *(replicas if wide else ("replicas",))),
        [
            (
                *place,
                f"{sum(one['state'] == 'READY' for one in found.values())} of {len(found)}",
                *(
                    [_cell(found.get(name)) for name in replicas]
                    if wide
                    else [", ".join(f"{name} {_cell(found[name])}" for name in sorted(found))]
                ),
            )
            for place, found in places.items()
        ],
    )


def _cell(row: dict[str, Any] | None) -> str | None:
    if row is None:
        return None
    return f"{row['state'] or UNKNOWN}" + (f": {row['reason']}" if row["reason"] else "")
