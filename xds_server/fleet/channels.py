"""Over which resources a changed field reaches Envoys and pickers, and what drains connections.

Rules:

1. Every field of a fleet has its channels here; a part without an entry has those of the part that
   holds it. A test changes each field and compares.
2. A field of LDS *drains*: Envoy closes each connection of the old listener once its answers are
   complete. Only settings that Envoy has in the listener and nowhere else are such fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xds_server.fleet.view import log_slots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from xds_server.fleet.model.fleet import Fleet

CHANNELS: Final[Mapping[str, tuple[str, ...]]] = {
    "listener": ("LDS",),
    "listener.debug_headers": ("RDS",),
    "listener.client_headers": ("ECDS", "RDS"),
    "listener.tls": ("SDS",),
    "pickers": ("ECDS",),
    "pickers.addresses": ("EDS", "POOL"),
    "on_reject": (),
    "reject_quorum": (),
    "waves": (),
    "pools": ("POOL",),
    "pools.name": ("CDS", "EDS", "SDS", "RDS", "RTDS", "POOL"),
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
    "pools.routing.body": ("RDS", "POOL"),
    "pools.routing.first_message": ("RDS",),
    "pools.routing.fallbacks": ("RDS", "POOL"),
    "pools.routing.retry_read": ("RDS",),
    "pools.routing.session_header": ("ECDS", "RDS", "POOL"),
    "pools.routing.peek_bytes": ("RDS",),
    "pools.slow_start": ("CDS", "POOL"),
    "pools.slow_start.aggression": ("RTDS", "POOL"),
    "pools.circuit_breaker": ("RTDS",),
    "pools.circuit_breaker.max_connections_per_endpoint": ("CDS",),
    "pools.circuit_breaker.per_endpoint_in_flight": ("POOL",),
    "pools.outlier.consecutive_failures": ("CDS", "POOL"),
    "pools.outlier.interval": ("CDS", "POOL"),
    "pools.health": ("CDS",),
    "pools.health.interval": ("CDS", "POOL"),
    "pools.health.repository": (),
    "pools.health.gpu_memory_free_percent": ("POOL",),
    "pools.health.share": ("POOL",),
    "pools.health.quorum": (),
    "pools.timeouts": ("RDS",),
    "pools.timeouts.first_answer": ("RDS", "POOL"),
    "pools.timeouts.first_answer_least": ("POOL",),
    "pools.zones": ("EDS",),
    "pools.shadow": ("RDS",),
    "pools.drop_overload": ("EDS",),
    "pools.upstream_tls": ("SDS",),
    "pools.upstream_tls.server_name": ("CDS",),
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
    return tuple(name for name, value in now.items() if was[name] != value)


def _fixed(fleet: Fleet) -> Iterator[tuple[str, object]]:
    yield "pickers.addresses", len(log_slots(fleet.pickers.addresses))
    listener = fleet.listener
    for name in type(listener).model_fields:
        if channels_of(f"listener.{name}") == ("LDS",):
            yield f"listener.{name}", getattr(listener, name)
    # The files of TLS are secrets; whether there is TLS, and a check of clients, is not.
    yield "listener.tls", listener.tls is not None
    yield "listener.tls.client_ca", listener.tls is not None and listener.tls.client_ca is not None
