"""Read-only verbs: ``get``, ``status``, ``history``."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import ReadFlags  # noqa: TC001 - typer reads annotations at runtime

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


class What(StrEnum):
    """Kinds of objects that ``get`` lists."""

    POOLS = "pools"
    ENDPOINTS = "endpoints"
    CLIENTS = "clients"
    REVISIONS = "revisions"


LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=MAX_LIMIT, help="Maximum number of revisions.")
]


def get(
    what: Annotated[What, typer.Argument(help="Kind of objects to list.")],
    *,
    flags: ReadFlags,
) -> None:
    """List the pools, endpoints, clients or revisions of the control server."""
    from tidegate.cli import views
    from tidegate.cli.client import READ_TIMEOUT_S, admin
    from tidegate.terminal.output import emit
    from tidegate_api.admin.v1 import admin_pb2 as api

    with admin(flags.server) as stub:
        rows: list[dict[str, Any]]
        shown: Iterable[Table | str]
        if what is What.POOLS:
            rows = views.pools(stub.GetFleet(api.GetFleetRequest(), timeout=READ_TIMEOUT_S))
            shown = [_pools_table(rows)]
        elif what is What.ENDPOINTS:
            status_ = stub.GetStatus(api.GetStatusRequest(), timeout=READ_TIMEOUT_S)
            fleet = stub.GetFleet(api.GetFleetRequest(), timeout=READ_TIMEOUT_S)
            pickers = sum(1 for client in status_.clients if client.kind == "picker")
            rows = views.endpoints(fleet, pickers=pickers)
            shown = [_endpoints_table(rows)]
        elif what is What.CLIENTS:
            rows = views.clients(stub.GetStatus(api.GetStatusRequest(), timeout=READ_TIMEOUT_S))
            shown = [_clients_table(rows)]
        else:
            listed = stub.ListRevisions(
                api.ListRevisionsRequest(limit=DEFAULT_LIMIT), timeout=READ_TIMEOUT_S
            )
            rows = views.revisions(listed.revisions)
            shown = [_revisions_table(rows)]
    emit(rows, shown, flags.output)


def status(*, flags: ReadFlags) -> None:
    """Show the revision in force and what each client has acknowledged."""
    from tidegate.cli import views
    from tidegate.cli.client import READ_TIMEOUT_S, admin
    from tidegate.terminal.output import emit
    from tidegate_api.admin.v1 import admin_pb2 as api

    with admin(flags.server) as stub:
        answer = stub.GetStatus(api.GetStatusRequest(), timeout=READ_TIMEOUT_S)
    data = views.status(answer)
    head = f"revision {data['revision']}, " + (
        "settled" if data["settled"] else "a change is under way"
    )
    shown: list[Table | str] = [head]
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
    shown.append(_clients_table(data["clients"]) if data["clients"] else "no client is connected")
    if any(one["message"] for client in data["clients"] for one in client["types"]):
        shown.append(_messages_table(data["clients"]))
    shown += [
        f"{client['client']} (Envoy {client['build']}) lacks: {lost}"
        for client in data["clients"]
        for lost in client["lost"]
    ]
    if data["refused"]:
        shown.append(_refused_table(data["refused"]))
    if data["sick"]:
        shown.append(_sick_table(data["sick"]))
    emit(data, shown, flags.output)


def history(
    limit: LimitOption = DEFAULT_LIMIT,
    *,
    flags: ReadFlags,
) -> None:
    """List revisions of the fleet, newest first, with author, reason, changes and outcome."""
    from tidegate.cli import views
    from tidegate.cli.client import READ_TIMEOUT_S, admin
    from tidegate.terminal.output import emit
    from tidegate_api.admin.v1 import admin_pb2 as api

    with admin(flags.server) as stub:
        answer = stub.ListRevisions(api.ListRevisionsRequest(limit=limit), timeout=READ_TIMEOUT_S)
    rows = views.revisions(answer.revisions)
    emit(rows, [_revisions_table(rows)], flags.output)


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

    return table(
        ("endpoint", "pool", "variant", "http", "grpc", "state", "#in flight"),
        [
            (
                row["endpoint"],
                row["pool"],
                row["variant"],
                row["http"],
                row["grpc"],
                "draining" if row["draining"] else "in use",
                row["in_flight"],
            )
            for row in rows
        ],
    )


def _clients_table(rows: list[dict[str, Any]]) -> Table:
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


def _refused_table(rows: list[dict[str, Any]]) -> Table:
    from tidegate.terminal.output import table

    return table(
        ("refused peer", "node", "why", "#times"),
        [(row["peer"], row["node"], row["reason"], row["count"]) for row in rows],
    )
