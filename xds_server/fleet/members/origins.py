"""Origins: the places where a pool's replicas are found, and what a found replica becomes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from xds_server.fleet.model.fields import join_host_port, split_host_port, split_name_port
from xds_server.fleet.model.fleet import EndpointSpec

if TYPE_CHECKING:
    from xds_server.fleet.model.discovery import EndpointsFrom
    from xds_server.fleet.model.fleet import PoolSpec


class Unfit(ValueError):  # noqa: N818 - reads as the sentence it is
    """A found replica cannot join; the message says why."""


@dataclass(frozen=True, slots=True)
class Origin:
    """One source of a pool, or one endpoint that is written with a name."""

    key: str
    """Its name, for people; different for each origin of a pool."""
    source: EndpointsFrom | None
    """The source; ``None`` for an endpoint with a name."""
    endpoint: EndpointSpec | None
    """The endpoint with a name; ``None`` for a source."""

    def replica(
        self,
        identity: str,
        http: str | None,
        grpc: str | None,
        *,
        variant: str | None = None,
        zone: str | None = None,
        device: str | None = None,
    ) -> EndpointSpec:
        """Return the replica that was found.

        Args:
            identity: Its id.
            http: ``ip:port`` of HTTP.
            grpc: ``ip:port`` of gRPC.
            variant: Its variant, if the source tells it; as are zone and device.
            zone: Its zone.
            device: Its device.

        Raises:
            Unfit: It is no replica for the pool; the message says why.
        """
        kinds = {self.endpoint.kind} if self.endpoint is not None else self.source.kinds  # type: ignore[union-attr] # one of them is given
        if len(kinds) == 1:
            (kind,) = kinds
            for name, address, needed in (("http", http, kind.http), ("grpc", grpc, kind.grpc)):
                if needed and address is None:
                    raise Unfit(f"it has no `{name}` address{self._remedy()}")
            http, grpc = http if kind.http else None, grpc if kind.grpc else None
        if self.endpoint is not None:
            named, at = self.endpoint, split_host_port(http or grpc or "")[0]
            update = {"id": identity, "http": http, "grpc": grpc}
            # Whether it drains is the fleet's word, and applied where the fleet is published.
            return named.model_copy(
                update={**update, "metrics": _metrics(named, at), "draining": False}
            )
        source = self.source
        if source is None:
            raise TypeError(self)
        fields = {
            "id": identity,
            "http": http,
            "grpc": grpc,
            "variant": variant or source.variant,
            "zone": zone or source.zone,
            "device": device or source.device,
            "capacity": source.capacity,
        }
        page = http if source.inference_pool is not None else None
        if source.metrics_port is not None:
            page = join_host_port(split_host_port(http or grpc or "")[0], source.metrics_port)
        if page is not None:
            fields["metrics"] = f"http://{page}/metrics"
        try:
            return EndpointSpec.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise Unfit(f"{where}: {first['msg']}") from None

    def _remedy(self) -> str:
        """Return what to write where replicas lack a protocol; empty if nothing is known."""
        if self.source is not None and self.source.protocols is not None:
            return ": correct `protocols`, or leave it out"
        return ""


def origins_of(pool: PoolSpec) -> dict[str, Origin]:
    """Return the origins of a written pool, by key."""
    named = (
        Origin(f"name {each.dns_name} ({each.id})", None, each)
        for each in pool.endpoints
        if each.dns_name is not None
    )
    sources = (Origin(each.key, each, None) for each in pool.endpoints_from)
    return {origin.key: origin for origin in (*named, *sources)}


def _metrics(named: EndpointSpec, host: str) -> str | None:
    """Return the URL of the metrics page, with the address in place of the endpoint's name."""
    url = named.metrics
    if url is None:
        return None
    authority, slash, path = url.removeprefix("http://").partition("/")
    known = split_name_port(authority)
    if known is None or known[0].lower() != named.dns_name:
        return url
    return f"http://{join_host_port(host, known[1])}{slash}{path}"
