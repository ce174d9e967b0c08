"""What ``top`` shows: rows of variants and replicas from the admin API's answers. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate.cli.views import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tidegate_api.admin.v1.admin_pb2 import (
        GetStatusResponse,
        PoolStatus,
        ReplicaStatus,
        VariantStatus,
    )

LEAST_S: Final = 1.0
"""Least time over which a rate is taken, seconds."""


class Sort(StrEnum):
    """By what replicas and variants are sorted."""

    NAME = "name"
    REQUESTS = "requests"
    ERRORS = "errors"
    P99 = "p99"
    IN_FLIGHT = "in-flight"
    STATE = "state"


class VariantRow(NamedTuple):
    """A variant in the last minute."""

    pool: str
    variant: str
    weight: int
    replicas: int
    usable: int
    rate: float | None
    """Requests per second; ``None`` = unknown, as no picker reports."""
    errors: int | None
    first_byte_p50: float | None
    p50: float | None
    p99: float | None
    """Seconds; ``None`` = there were no such requests."""
    in_flight: int | None
    """Requests in flight on its replicas; ``None`` = unknown."""


class ReplicaRow(NamedTuple):
    """A replica now, and its requests of the last minute."""

    endpoint: str
    pool: str
    variant: str
    state: str
    usable: bool
    rate: float | None
    errors: int | None
    in_flight: int | None
    age_s: float | None
    """Age of its readings; ``None`` = there are none."""
    mean_s: float | None = None
    """Mean duration of its requests that ended well; ``None`` = there were none, or unknown."""
    peers_s: float | None = None
    """The same of the other replicas of its variant."""
    hour_s: float | None = None
    """The same of its own in the hour before."""


class Glance(NamedTuple):
    """One look at the whole."""

    verdict: str
    why: str
    revision: int
    settled: bool
    clients: int
    refused: int
    """Requests that pickers refused in the last minute."""
    variants: list[VariantRow]
    replicas: list[ReplicaRow]
    canaries: Sequence[str] = ()
    """Rollouts that run, each in one line."""


def glance(status: GetStatusResponse, replicas: Iterable[ReplicaStatus], pool: str = "") -> Glance:
    """Return what the answers say; ``pool`` = of this one only, empty = of all."""
    found = [each for each in replicas if not pool or each.pool == pool]
    pools = [each for each in status.pools if not pool or each.pool == pool]
    loads: dict[tuple[str, str], int | None] = {}
    for one in found:
        key = (one.pool, one.variant)
        known = loads.get(key, 0)
        count = one.in_flight if one.HasField("in_flight") else None
        loads[key] = None if known is None or count is None else known + count
    seconds = {(each.pool, one.variant): one.seconds for each in pools for one in each.variants}
    return Glance(
        status.verdict,
        status.why,
        status.revision,
        status.settled,
        len(status.clients),
        sum(sum(each.refused.values()) for each in pools),
        [
            _variant(each, one, loads.get((each.pool, one.variant)), known=counted(status))
            for each in pools
            for one in each.variants
        ],
        [_replica(one, seconds.get((one.pool, one.variant), 0.0)) for one in found],
        [each for each in status.canaries if not pool or each.startswith(f"canary {pool}:")],
    )


def _variant(
    pool: PoolStatus, one: VariantStatus, in_flight: int | None, *, known: bool
) -> VariantRow:
    def value(name: str) -> float | None:
        return getattr(one, name) if one.HasField(name) else None  # type: ignore[arg-type]  # the stubs want literals

    return VariantRow(
        pool.pool,
        one.variant,
        one.weight,
        one.replicas,
        one.usable,
        one.requests / max(one.seconds, LEAST_S) if known else None,
        one.errors if known else None,
        value("first_byte_p50"),
        value("duration_p50"),
        value("duration_p99"),
        in_flight,
    )


def _replica(one: ReplicaStatus, seconds: float) -> ReplicaRow:
    return ReplicaRow(
        one.endpoint,
        one.pool,
        one.variant,
        one.state,
        one.usable,
        one.requests / max(seconds, LEAST_S) if one.counted else None,
        one.errors if one.counted else None,
        one.in_flight if one.HasField("in_flight") else None,
        one.age_seconds if one.HasField("age_seconds") else None,
        one.minute.duration if one.HasField("minute") else None,
        one.peers.duration if one.HasField("peers") else None,
        one.hour.duration if one.HasField("hour") else None,
    )


def sorted_variants(found: Sequence[VariantRow], by: Sort, *, reverse: bool) -> list[VariantRow]:
    """Return the variants, most of what ``by`` counts first, or by name."""
    if by in {Sort.NAME, Sort.STATE}:
        key: Any = (lambda e: (e.usable, e.pool, e.variant)) if by is Sort.STATE else _name
        return sorted(found, key=key, reverse=reverse)
    values = {
        Sort.REQUESTS: lambda e: e.rate,
        Sort.ERRORS: lambda e: e.errors,
        Sort.P99: lambda e: e.p99,
        Sort.IN_FLIGHT: lambda e: e.in_flight,
    }
    return _most(sorted(found, key=_name), values[by], reverse=reverse)


def sorted_replicas(found: Sequence[ReplicaRow], by: Sort, *, reverse: bool) -> list[ReplicaRow]:
    """Return the replicas likewise; ``p99`` sorts them by their means."""
    if by in {Sort.NAME, Sort.STATE}:
        key: Any = (lambda e: (e.usable, e.state, e.endpoint)) if by is Sort.STATE else _endpoint
        return sorted(found, key=key, reverse=reverse)
    values = {
        Sort.REQUESTS: lambda e: e.rate,
        Sort.ERRORS: lambda e: e.errors,
        Sort.P99: lambda e: e.mean_s,
        Sort.IN_FLIGHT: lambda e: e.in_flight,
    }
    return _most(sorted(found, key=_endpoint), values[by], reverse=reverse)


def _most(found: list[Any], value: Any, *, reverse: bool) -> list[Any]:
    """Return the rows with the highest values first; unknown ones last."""
    known = [each for each in found if value(each) is not None]
    unknown = [each for each in found if value(each) is None]
    return sorted(known, key=value, reverse=not reverse) + unknown


def _name(one: VariantRow) -> tuple[str, str]:
    return one.pool, one.variant


def _endpoint(one: ReplicaRow) -> tuple[str, str]:
    return one.endpoint, one.pool
