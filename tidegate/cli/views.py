"""Conversion of admin API responses to plain data for tables, JSON and YAML. Pure functions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate_api.admin.v1.admin_pb2 import (
        ChangeResult,
        ClientStatus,
        GetFleetResponse,
        GetStatusResponse,
        Revision,
    )

Row = dict[str, Any]


def pools(answer: GetFleetResponse) -> list[Row]:
    """Return one row per pool, with its variants nested."""
    return [
        {
            "pool": pool["name"],
            "models": list(pool.get("match", {}).get("models", ())),
            "paths": list(pool.get("match", {}).get("paths", ())),
            "default": pool.get("default", False),
            "policy": pool.get("routing", {}).get("policy"),
            "body": pool.get("routing", {}).get("body"),
            "variants": [
                {
                    "variant": variant["name"],
                    "weight": variant.get("weight", 1),
                    "model_version": variant.get("model_version"),
                    "endpoints": sum(
                        1
                        for one in pool.get("endpoints", ())
                        if _variant(pool, one) == variant["name"]
                    ),
                }
                for variant in _variants(pool)
            ],
        }
        for pool in _fleet(answer)
    ]


def endpoints(answer: GetFleetResponse, *, pickers: int) -> list[Row]:
    """Return one row per pool and endpoint.

    ``in_flight`` is ``None`` (unknown) while no picker is connected.
    """
    return [
        {
            "endpoint": endpoint.get("id") or endpoint.get("grpc") or endpoint.get("http"),
            "pool": pool["name"],
            "variant": _variant(pool, endpoint),
            "http": endpoint.get("http"),
            "grpc": endpoint.get("grpc"),
            "capacity": endpoint.get("capacity", 1.0),
            "zone": endpoint.get("zone") or None,
            "draining": endpoint.get("draining", False),
            "in_flight": answer.in_flight.get(endpoint.get("id", ""), 0) if pickers else None,
        }
        for pool in _fleet(answer)
        for endpoint in pool.get("endpoints", ())
    ]


def clients(answer: GetStatusResponse) -> list[Row]:
    """Return one row per connected client, with its resource types nested."""
    return [
        {
            "client": client.node,
            "kind": client.kind,
            "protocol": client.protocol,
            "peer": client.peer,
            "connected_seconds": round(client.connected_seconds, 1),
            "group": client.group or None,
            "state": client_state(client),
            "build": client.build or None,
            "lost": list(client.lost),
            "quarantine": client.quarantine or None,
            "twins": client.twins,
            "types": [
                {
                    "type": one.type,
                    "state": one.state,
                    "version_sent": one.version_sent or None,
                    "version_acked": one.version_acked or None,
                    "resources": one.resources,
                    "pending_seconds": round(one.pending_seconds, 3),
                    "message": one.message or None,
                }
                for one in client.types
            ],
        }
        for client in answer.clients
    ]


def warnings(answer: GetStatusResponse) -> list[str]:
    """Return what is wrong with clients beyond one change: quarantines and shared node ids."""
    shared = {(one.kind, one.node): one.twins for one in answer.clients if one.twins > 1}
    return [
        f"{one.node} ({one.peer}) is in quarantine: {one.quarantine}"
        for one in answer.clients
        if one.quarantine
    ] + [
        f"{twins} {kind}s are connected with the node id {node}; give each its own"
        for (kind, node), twins in shared.items()
    ]


def client_state(client: ClientStatus) -> str:
    """Return the worst state of a client's types; ``NOT_SENT`` counts as ``SYNCED``."""
    states = {one.state for one in client.types}
    return next((state for state in ("NACKED", "STALE") if state in states), "SYNCED")


def revisions(found: Iterable[Revision]) -> list[Row]:
    """Return one row per revision, in the order given (newest first)."""
    return [
        {
            "revision": one.number,
            "at": moment(one.at_unix_ms),
            "author": one.author or None,
            "reason": one.reason or None,
            "changes": list(one.changes),
            "outcome": one.outcome or None,
        }
        for one in found
    ]


def status(answer: GetStatusResponse) -> Row:
    """Return the state of the control server and its clients."""
    return {
        "revision": answer.revision,
        "settled": answer.settled,
        "file_error": answer.file_error or None,
        "refusal": answer.refusal or None,
        "store_error": answer.store_error or None,
        "unwritten": list(answer.unwritten),
        "clients": clients(answer),
        "refused": [
            {
                "peer": one.peer,
                "node": one.node or None,
                "reason": one.reason,
                "count": one.count,
                "last_seconds": round(one.last_seconds, 1),
            }
            for one in answer.refused
        ],
        "warnings": warnings(answer),
        "sick": [
            {
                "pool": one.pool,
                "endpoint": one.endpoint,
                "conditions": list(one.conditions),
                "pickers": one.pickers,
                "told": one.told,
            }
            for one in answer.sick
        ],
    }


def change(result: ChangeResult, *, dry_run: bool) -> Row:
    """Return the outcome of a change."""
    return {
        "revision": result.revision,
        "dry_run": dry_run,
        "changes": list(result.changes),
        "outcome": result.outcome or None,
        "channels": list(result.channels),
        "clients": result.clients,
        "acked": result.acked,
        "elapsed_ms": result.elapsed_ms if result.HasField("elapsed_ms") else None,
        "problems": [
            {"client": one.client, "state": one.state, "type": one.type, "message": one.message}
            for one in result.problems
        ],
    }


def moment(unix_ms: int) -> str:
    """Format a Unix time in milliseconds as UTC, to the second."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _fleet(answer: GetFleetResponse) -> list[Row]:
    found: list[Row] = json.loads(answer.fleet_json)["pools"]
    return found


def _variants(pool: Row) -> list[Row]:
    found: list[Row] = pool.get("variants") or [{"name": "stable", "weight": 1}]
    return found


def _variant(pool: Row, endpoint: Row) -> str:
    return str(endpoint.get("variant") or _variants(pool)[0]["name"])
