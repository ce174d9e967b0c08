"""Over which resources a changed field reaches Envoys and pickers, and what drains connections.

Rules:

1. Every field of a fleet has its channels here; a part without an entry has those of the part that
   holds it. A test changes each field and compares.
2. What is found travels apart: a source of replicas has no channel of its own, its replicas have
   those of ``pools.endpoints``. The channels of a field do not count a pool that finds nothing.
3. A field of LDS *drains*: Envoy closes each connection of the old listener once its answers are
   complete. Only settings that Envoy has in the listener and nowhere else are such fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xds_server.fleet.model.edge import Compression
from xds_server.fleet.view import log_slots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.model.listener import ListenerSpec

CHANNELS: Final[Mapping[str, tuple[str, ...]]] = {
    "listener": ("LDS",),
    "listener.address": ("LDS", "RDS"),
    "listener.debug_headers": ("RDS",),
    "listener.client_headers": ("ECDS", "RDS"),
    "listener.tls": ("SDS",),
    "listener.http3": ("LDS", "RDS"),
    "listener.pools": ("RDS",),
    "listener.hosts": ("RDS",),
    "listener.further": ("LDS", "RDS"),
    "listener.further.name": ("LDS", "RDS", "SDS"),
    "listener.further.address": ("LDS",),
    "listener.further.proxy_protocol": ("LDS",),
    "listener.further.pools": ("RDS",),
    "listener.further.hosts": ("RDS",),
    "listener.further.tls": ("SDS",),
    "listener.jwt": ("ECDS",),
    "listener.jwt.name": ("CDS", "ECDS"),
    "listener.jwt.jwks_url": ("CDS", "ECDS"),
    "listener.jwt.jwks_file": ("CDS", "ECDS"),
    "listener.jwt.jwks": ("CDS", "ECDS"),
    "listener.jwt.jwks_ca": ("CDS",),
    "listener.cors": ("RDS",),
    "listener.compression": ("ECDS",),
    "listener.compression.algorithms": ("LDS", "ECDS", "RDS"),
    "listener.rate_limit": ("RDS",),
    "listener.client_rate_limit": ("RDS",),
    "listener.access_log": ("LDS", "RTDS", "POOL"),
    "listener.access_log.stdout": ("LDS",),
    "listener.access_log.file": ("LDS",),
    "listener.access_log.otlp": ("CDS",),
    "listener.access_log.percent": ("RTDS",),
    "listener.tracing": ("LDS", "RTDS", "CDS"),
    "listener.tracing.otlp": ("CDS",),
    "listener.tracing.percent": ("RTDS",),
    "listener.tracing.service": ("LDS",),
    "listener.http_filters": ("LDS", "ECDS"),
    "listener.http_filters.before.config": ("ECDS",),
    "listener.http_filters.after.config": ("ECDS",),
    "pickers": ("ECDS",),
    "pickers.addresses": ("EDS", "POOL"),
    "pickers.fail_open": ("ECDS", "POOL"),
    "pickers.tls": ("SDS",),
    "pickers.tls.server_name": ("CDS",),
    "gateway": ("EDS",),
    "gateway.tls": ("SDS",),
    "gateway.tls.server_name": ("CDS",),
    "on_reject": (),
    "reject_quorum": (),
    "waves": (),
    "pools": ("POOL",),
    "pools.name": ("CDS", "EDS", "SDS", "ECDS", "RDS", "RTDS", "POOL"),
    "pools.default": ("RDS", "POOL"),
    "pools.match": ("RDS", "POOL"),
    "pools.match.models": ("CDS", "RDS", "POOL"),
    "pools.variants.name": ("CDS", "EDS", "RDS", "RTDS", "POOL"),
    "pools.variants.weight": ("RTDS", "POOL"),
    "pools.variants.model_version": ("CDS", "RDS", "RTDS", "POOL"),
    "pools.variants.match.headers": ("ECDS", "RDS", "POOL"),
    "pools.variants.match.cookies": ("RDS", "POOL"),
    "pools.endpoints.http": ("EDS", "POOL"),
    "pools.endpoints.grpc": ("EDS", "POOL"),
    "pools.endpoints.variant": ("EDS", "POOL"),
    "pools.endpoints.capacity": ("EDS", "POOL"),
    "pools.endpoints.zone": ("EDS", "POOL"),
    "pools.endpoints.draining": ("EDS", "POOL"),
    "pools.endpoints.standby": ("EDS", "POOL"),
    "pools.standby": (),
    "pools.canary": (),
    "pools.endpoints_from": (),
    "pools.membership": (),
    "pools.drained": (),
    "pools.routing.body": ("RDS", "POOL"),
    "pools.routing.first_message": ("RDS",),
    "pools.routing.fallbacks": ("RDS", "POOL"),
    "pools.routing.retry_read": ("RDS", "POOL"),
    "pools.routing.session_header": ("ECDS", "RDS", "POOL"),
    "pools.routing.timeout_header": ("ECDS", "POOL"),
    "pools.routing.peek_bytes": ("RDS", "POOL"),
    "pools.routing.without_picker": ("RDS", "POOL"),
    "pools.slow_start": ("CDS", "POOL"),
    "pools.slow_start.aggression": ("RTDS", "POOL"),
    "pools.circuit_breaker": ("RTDS",),
    "pools.circuit_breaker.max_connections_per_endpoint": ("CDS",),
    "pools.circuit_breaker.per_endpoint_in_flight": ("POOL",),
    "pools.outlier.consecutive_failures": ("CDS", "POOL"),
    "pools.outlier.interval": ("CDS", "POOL"),
    "pools.health": ("CDS",),
    "pools.health.interval": ("CDS", "POOL"),
    "pools.health.path": ("CDS", "POOL"),
    "pools.health.repository": ("RDS", "POOL"),
    "pools.health.gpu_memory_free_percent": ("POOL",),
    "pools.health.share": ("POOL",),
    "pools.health.quorum": (),
    "pools.timeouts": ("RDS",),
    "pools.timeouts.request": ("RDS", "POOL"),
    "pools.timeouts.first_answer": ("RDS", "POOL"),
    "pools.timeouts.idle": ("RDS", "POOL"),
    "pools.timeouts.first_answer_least": ("POOL",),
    "pools.zones": ("EDS",),
    "pools.shadow": ("RDS",),
    "pools.drop_overload": ("EDS",),
    "pools.upstream_tls": ("SDS", "POOL"),
    "pools.upstream_tls.server_name": ("CDS", "POOL"),
    "pools.jwt": ("ECDS",),
    "pools.rate_limit": ("RDS",),
    "pools.connections": ("CDS",),
    "pools.http_filters": ("RDS",),
    "pools.cluster_patch": ("CDS",),
    "pools.telemetry.orca": ("RDS", "POOL"),
    "pools.telemetry.usage": ("RDS", "POOL"),
}
"""Field or part of a fleet -> the types that carry it, as short names."""


def channels_of(path: str) -> tuple[str, ...]:
    """Return the channels of a field, such as ``pools.timeouts.idle``.

    Raises:
        KeyError: No part of a fleet has this path.
    """
    part = path
    while part not in CHANNELS:
        part = part.rpartition(".")[0]
        if not part:
            raise KeyError(path)
    return CHANNELS[part]


def drains(old: Fleet, new: Fleet) -> tuple[str, ...]:
    """Return the changed fields for which Envoy drains the listener's connections."""
    was, now = dict(_fixed(old)), dict(_fixed(new))
    changed = [name for name, value in now.items() if was[name] != value]
    # A listener that comes has no connections yet.
    if not set(_beside(old)) <= set(_beside(new)):
        changed.append("listener.further")
    if old.listener.http3 and not new.listener.http3:
        changed.append("listener.http3")
    return tuple(changed)


def compressors(listener: ListenerSpec) -> tuple[str, ...]:
    """Return the algorithms that the listener has filters for: the default, and what is offered."""
    offered = Compression() if listener.compression is None else listener.compression
    return tuple(dict.fromkeys((*Compression().algorithms, *offered.algorithms)))


def _beside(fleet: Fleet) -> Iterator[tuple[object, ...]]:
    for each in fleet.listener.further:
        asks = each.tls is not None and each.tls.client_ca is not None
        yield (
            each.name,
            each.address,
            each.proxy_protocol,
            each.tls is not None,
            asks,
            each.operators,
        )


def _fixed(fleet: Fleet) -> Iterator[tuple[str, object]]:
    yield "pickers.addresses", len(log_slots(fleet.pickers.addresses))
    listener = fleet.listener
    yield "listener.address", listener.address
    for name in type(listener).model_fields:
        if channels_of(f"listener.{name}") == ("LDS",):
            yield f"listener.{name}", getattr(listener, name)
    # Whether there is such a filter is the listener's; its settings are not.
    yield "listener.jwt", bool(listener.jwt)
    for place in ("before", "after"):
        several = getattr(listener.http_filters, place)
        kinds = [(each.name, each.config.get("@type")) for each in several]
        yield f"listener.http_filters.{place}", kinds
    log, traced = listener.access_log, listener.tracing
    yield "listener.access_log", log and (log.stdout, log.file, log.otlp is not None)
    yield "listener.tracing", traced and traced.service
    yield "listener.compression.algorithms", compressors(listener)
    # The files of TLS are secrets; whether there is TLS, and a check of clients, is not.
    yield "listener.tls", listener.tls is not None
    yield "listener.tls.client_ca", listener.tls is not None and listener.tls.client_ca is not None
