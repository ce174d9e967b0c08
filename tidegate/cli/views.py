"""Conversion of admin API responses to plain data for tables, JSON and YAML. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tidegate_api.admin.v1.admin_pb2 import (
        ChangePreview,
        ChangeResult,
        ClientStatus,
        GetFleetResponse,
        GetStatusResponse,
        PoolStatus,
        ReplicaStatus,
        RequestTimes,
        Revision,
        TrafficMinute,
        VariantStatus,
    )

Row = dict[str, Any]
STALE_S = 15.0
"""Age of a picker's last report from which on it says nothing of the present."""


def row_of(message: Any, digits: int | None = None, **given: Any) -> Row:
    """Return the fields of a message by name; what is empty text, or not set, is ``None``.

    Args:
        message: A message whose fields are no messages, but for those in ``given``.
        digits: Digits after the point; ``None`` = all.
        given: Values in place of the message's, and further ones.
    """
    found: Row = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in given:
            continue
        value = getattr(message, field.name)
        if isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            value = list(value)
        elif value == "" or (field.has_presence and not message.HasField(field.name)):
            value = None
        elif digits is not None and isinstance(value, float):
            value = round(value, digits)
        found[field.name] = value
    return {**found, **given}


def pools(answer: GetFleetResponse) -> list[Row]:
    """Return one row per pool, with its variants nested."""
    by_pool: dict[str, list[Row]] = {}
    for one in endpoints(answer, pickers=0):
        by_pool.setdefault(one["pool"], []).append(one)
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
                        for one in by_pool.get(pool["name"], ())
                        if one["variant"] == variant["name"]
                    ),
                }
                for variant in _variants(pool)
            ],
        }
        for pool in _fleet(answer)
    ]


def endpoints(answer: GetFleetResponse, *, pickers: int) -> list[Row]:
    """Return one row per pool and endpoint.

    ``in_flight`` is ``None`` (unknown) while no picker reports. An endpoint that is written
    with a name has a row per address that was found.
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
            "from": "fleet",
            "held": False,
        }
        for pool in _fleet(answer)
        for endpoint in pool.get("endpoints", ())
        if not any(_named(endpoint.get(protocol)) for protocol in ("http", "grpc"))
    ] + [
        {
            "endpoint": one.id,
            "pool": one.pool,
            "variant": one.variant,
            "http": one.http or None,
            "grpc": one.grpc or None,
            "capacity": one.capacity,
            "zone": one.zone or None,
            "draining": one.draining,
            "in_flight": answer.in_flight.get(one.id, 0) if pickers else None,
            "from": one.source,
            "held": one.held,
        }
        for one in answer.found
    ]


def with_states(rows: list[Row], states: Iterable[ReplicaStatus]) -> list[Row]:
    """Add what pickers report to the rows of endpoints; what they do not report is unknown."""
    known = {(one.pool, one.endpoint): one for one in states}
    return [
        {
            **row,
            **(
                _unreported(row)
                if (one := known.get((row["pool"], row["endpoint"]))) is None
                else _reported(one)
            ),
        }
        for row in rows
    ]


def _unreported(row: Row) -> Row:
    return {
        "state": "draining" if row["draining"] else "held" if row["held"] else "in use",
        "usable": None,
        "age_seconds": None,
        "conditions": [],
        "notes": [],
        "ramp_percent": None,
        "pickers": 0,
        "requests": None,
        "errors": None,
        "minute": None,
        "peers": None,
        "hour": None,
        "limits": [],
    }


def _reported(one: ReplicaStatus) -> Row:
    return {
        "state": one.state,
        "usable": one.usable,
        "age_seconds": round(one.age_seconds, 3) if one.HasField("age_seconds") else None,
        "conditions": [row_of(each, 1) for each in one.conditions],
        "notes": [row_of(each, 1) for each in one.notes],
        "ramp_percent": one.ramp_percent if one.HasField("ramp_percent") else None,
        "pickers": one.pickers,
        "requests": one.requests if one.counted else None,
        "errors": one.errors if one.counted else None,
        "minute": _times(one.minute) if one.HasField("minute") else None,
        "peers": _times(one.peers) if one.HasField("peers") else None,
        "hour": _times(one.hour) if one.HasField("hour") else None,
        "limits": [
            {"model": each.model or None, "most": each.most, "source": each.source}
            for each in one.limits
        ],
    }


def _times(one: RequestTimes) -> Row:
    return {
        "requests": one.requests,
        "duration_seconds": round(one.duration, 4),
        "first_byte_seconds": round(one.first_byte, 4) if one.HasField("first_byte") else None,
    }


def seconds(value: float | None) -> str | None:
    """Format a duration for people; ``None`` = unknown."""
    if value is None:
        return None
    return f"{value * 1000:.0f} ms" if value < 1.0 else f"{value:.1f} s"


def _cached(one: VariantStatus | TrafficMinute) -> str | None:
    return f"{one.cached_tokens / one.prompt_tokens:.0%}" if one.prompt_tokens else None


def reporting(answer: GetStatusResponse) -> int:
    """Return how many pickers report; without any it is not known what became of requests."""
    return sum(age_s <= STALE_S for age_s in answer.reports.values())


def counted(answer: GetStatusResponse) -> bool:
    """Return whether any picker reports, so that 0 requests are none."""
    return reporting(answer) > 0


def pool_status(one: PoolStatus, *, counted: bool = True) -> Row:
    """Return a pool's last minute, with its variants nested.

    Args:
        one: The pool.
        counted: Whether any picker reports requests; else what they are is not known.
    """
    return {
        "pool": one.pool,
        "refused": dict(one.refused),
        "queue": {
            "waiting": one.waiting if one.HasField("waiting") else None,
            "ended": one.queued if counted else None,
            **{
                name: round(getattr(one, name), 4) if one.HasField(name) else None
                for name in ("wait_seconds", "queued_p50", "queued_p99")
            },
        },
        "variants": [
            row_of(
                each,
                4,
                seconds=round(each.seconds, 1),
                requests=each.requests if counted else None,
                requests_per_second=(
                    round(each.requests / max(each.seconds, 1.0), 2) if counted else None
                ),
                errors=each.errors if counted else None,
                cached=_cached(each),
            )
            for each in one.variants
        ],
    }


def minutes(found: Iterable[TrafficMinute]) -> list[Row]:
    """Return a row per variant and minute."""
    return [
        row_of(one, 4, age_seconds=round(one.age_seconds, 1), cached=_cached(one)) for one in found
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
            "types": [row_of(one, 3) for one in client.types],
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
        "verdict": answer.verdict or None,
        "why": answer.why or None,
        "reasons": list(answer.reasons),
        "pools": [pool_status(one, counted=counted(answer)) for one in answer.pools],
        "drift": list(answer.drift),
        "canaries": list(answer.canaries),
        "reports": {picker: round(age, 1) for picker, age in sorted(answer.reports.items())},
        "revision": answer.revision,
        "settled": answer.settled,
        "file_error": answer.file_error or None,
        "refusal": answer.refusal or None,
        "store_error": answer.store_error or None,
        "unwritten": list(answer.unwritten),
        "clients": clients(answer),
        "refused": [row_of(one, 1) for one in answer.refused],
        "warnings": warnings(answer),
        "passes": {one.picker: dict(one.by_reason) for one in answer.passes},
        "sources": [row_of(one, 1) for one in answer.sources],
        "held": [
            row_of(
                one,
                left_seconds=round(one.left_seconds) if one.HasField("left_seconds") else None,
            )
            for one in answer.held
        ],
        "left_out": list(answer.left_out),
        "sick": [row_of(one) for one in answer.sick],
    }


def change(result: ChangeResult, *, dry_run: bool) -> Row:
    """Return the outcome of a change."""
    return {
        "revision": result.revision,
        "dry_run": dry_run,
        "changes": list(result.changes),
        "kept": list(result.kept),
        "outcome": result.outcome or None,
        "channels": list(result.channels),
        "clients": result.clients,
        "acked": result.acked,
        "elapsed_ms": result.elapsed_ms if result.HasField("elapsed_ms") else None,
        "problems": [
            {"client": one.client, "state": one.state, "type": one.type, "message": one.message}
            for one in result.problems
        ],
        **({"preview": preview(result.preview)} if result.HasField("preview") else {}),
    }


def moment(unix_ms: int) -> str:
    """Format a Unix time in milliseconds as UTC, to the second."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _named(address: str | None) -> bool:
    """Return whether an address of the fleet is a name and a port."""
    host = (address or "").rpartition(":")[0]
    return bool(host) and not host.startswith("[") and not host.replace(".", "").isdigit()


def _fleet(answer: GetFleetResponse) -> list[Row]:
    found: list[Row] = json.loads(answer.fleet_json)["pools"]
    return found


def _variants(pool: Row) -> list[Row]:
    found: list[Row] = pool.get("variants") or [{"name": "stable", "weight": 1}]
    return found


def _variant(pool: Row, endpoint: Row) -> str:
    return str(endpoint.get("variant") or _variants(pool)[0]["name"])


def preview(found: ChangePreview) -> Row:
    """Return what a change would do."""
    draining, remaining = map(row_of, found.draining), map(row_of, found.remaining)
    return row_of(found, draining=list(draining), remaining=list(remaining))


def preview_lines(found: ChangePreview) -> Iterator[str]:
    """Yield what a dry run tells: channels, effect on connections, what remains."""
    yield f"it would be sent over {', '.join(found.channels) or 'no channel'}"
    if found.drains:
        yield (
            "open connections would drain, each closed once its answers are complete: "
            f"{', '.join(found.drains)} changes"
        )
    else:
        yield "no connection would be closed"
    if found.warms:
        yield f"Envoy would open new connections to the replicas of {', '.join(found.warms)}"
    for one in found.draining:
        known = one.HasField("in_flight")
        count = str(one.in_flight or "none") if known else "an unknown number"
        yield f"{one.endpoint} would get no new requests; in flight on it: {count}"
    for each in found.remaining:
        was = "" if each.usable == each.usable_before else f" (now {each.usable_before})"
        line = (
            f"pool {each.pool}: variant {each.variant} would have {each.usable} of"
            f" {each.replicas} replicas usable{was}, weight {each.weight}"
        )
        if each.usable_before and each.usable != each.usable_before:
            line += f", {each.capacity / each.capacity_before:.0%} of its capacity"
        if each.weight and not each.usable:
            line += ": its requests would be refused"
        yield line
