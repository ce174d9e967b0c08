"""Replicas by DNS names: addresses of a name, targets of SRV records.

Rules:

1. A name is looked up again before its records expire, after a random 75 to 95 % of their TTL,
   within ``min_interval`` and ``max_interval``; after a failure sooner, with growing delays.
2. An answer counts as a whole: if one of its questions failed, or it has no address, there is no
   observation, and what was found before stays in force. ``trouble`` says so.
3. A replica of a name's addresses is called by its address. An endpoint that is written with a name
   keeps its own id for one of them: at first where the name has a single address, and after a
   change where none of the known addresses is left. The target and port of an SRV record name its
   replica.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from xds_server.applications.discovery.sources.resolver import LookFailed
from xds_server.applications.discovery.values import MAX_ENDPOINTS, Found, Observation
from xds_server.fleet.model.fields import join_host_port, split_name_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from xds_server.applications.discovery.sources.resolver import Answer, Resolver
    from xds_server.fleet.model.discovery import DnsSource
    from xds_server.fleet.model.fleet import EndpointSpec

EARLIEST: Final = 0.75
LATEST: Final = 0.95
"""Shares of the TTL between which the next look is."""

MIN_INTERVAL_S: Final = 1.0
MAX_INTERVAL_S: Final = 300.0
"""Bounds between two looks at the name of an endpoint, in seconds."""

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 30.0
MAX_TARGETS: Final = 256
"""Most targets of SRV records of one name."""

_AT_ONCE: Final = 16


class DnsNames:
    """Looks names up again and again; see the module's rules.

    Args:
        look: Returns what is found, and for how many seconds it may be believed.
        bounds: Least and longest time between two looks, in seconds.
        rng: Returns a number in [0, 1).
        sleep: Waits a number of seconds.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[tuple[tuple[Found, ...], float]]],
        bounds: tuple[float, float],
        rng: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._look = look
        self._least, self._longest = bounds
        self._rng = rng
        self._sleep = sleep
        self._failures = 0

    async def run(
        self, found: Callable[[Observation], None], trouble: Callable[[str], None]
    ) -> None:
        """Report what is found until cancelled."""
        while True:
            await self._sleep(await self.step(found, trouble))

    async def step(
        self, found: Callable[[Observation], None], trouble: Callable[[str], None]
    ) -> float:
        """Look once; return the seconds until the next look."""
        try:
            endpoints, ttl_s = await self._look()
            if len(endpoints) > MAX_ENDPOINTS:
                raise LookFailed(f"more than {MAX_ENDPOINTS} endpoints")  # noqa: TRY301 - one way out
        except LookFailed as error:
            trouble(f"{error}; what was found before stays")
            bound = min(LAST_RETRY_S, self._longest, FIRST_RETRY_S * 2.0 ** min(self._failures, 16))
            self._failures += 1
            return bound * (0.5 + 0.5 * self._rng())
        self._failures = 0
        trouble("")
        found(Observation(endpoints))
        ttl_s = min(max(ttl_s, self._least), self._longest)
        return max(self._least, ttl_s * (EARLIEST + (LATEST - EARLIEST) * self._rng()))


def of_source(spec: DnsSource, resolver: Resolver, rng: Callable[[], float]) -> DnsNames:
    """Return the source of a pool's ``endpoints_from.dns``."""

    async def by_address() -> tuple[tuple[Found, ...], float]:
        answer = _some(spec.name, await resolver.addresses(spec.name))
        endpoints = []
        for host in answer.values:
            http, grpc = _at(host, spec.http), _at(host, spec.grpc)
            endpoints.append(Found(grpc or http or "", http, grpc))
        return tuple(endpoints), answer.ttl_s

    async def by_service() -> tuple[tuple[Found, ...], float]:
        services = await resolver.services(spec.name)
        if not services.values:
            raise LookFailed(f"{spec.name} has no SRV records")
        if len(services.values) > MAX_TARGETS:
            raise LookFailed(f"{spec.name} has more than {MAX_TARGETS} SRV records")
        gate, ttl_s = asyncio.Semaphore(_AT_ONCE), services.ttl_s

        async def look(target: str) -> Answer:
            async with gate:
                return await resolver.addresses(target)

        names = sorted({service.target for service in services.values})
        answers = dict(zip(names, await asyncio.gather(*map(look, names)), strict=True))
        endpoints = []
        for service in services.values:
            answer = answers[service.target]
            several = len(answer.values) > 1
            for host in answer.values:
                identity = f"{service.target}:{service.port}" + (f"-{host}" if several else "")
                ports = {"http": spec.http, "grpc": spec.grpc, spec.srv: service.port}
                endpoints.append(
                    Found(identity, _at(host, ports["http"]), _at(host, ports["grpc"]))
                )
                ttl_s = min(ttl_s, answer.ttl_s)
        if not endpoints:
            raise LookFailed(f"no target of {spec.name} has an address")
        return tuple(endpoints), ttl_s

    look = by_address if spec.srv is None else by_service
    return DnsNames(look, (spec.min_interval, spec.max_interval), rng)


def of_endpoint(endpoint: EndpointSpec, resolver: Resolver, rng: Callable[[], float]) -> DnsNames:
    """Return the source of an endpoint that is written with a name."""
    ports = [split_name_port(each) if each else None for each in (endpoint.http, endpoint.grpc)]
    http, grpc = (None if each is None else each[1] for each in ports)
    name = endpoint.dns_name or ""
    identities: dict[str, str] = {}

    async def look() -> tuple[tuple[Found, ...], float]:
        answer = _some(name, await resolver.addresses(name))
        renamed = _identities(endpoint.id, answer.values, identities)
        identities.clear()
        identities.update(renamed)
        return (
            tuple(Found(renamed[host], _at(host, http), _at(host, grpc)) for host in answer.values),
            answer.ttl_s,
        )

    return DnsNames(look, (MIN_INTERVAL_S, MAX_INTERVAL_S), rng)


def _identities(own: str, hosts: tuple[str, ...], before: dict[str, str]) -> dict[str, str]:
    kept = {host: before[host] for host in hosts if host in before}
    fresh = [host for host in hosts if host not in kept]
    if fresh and own not in kept.values() and not kept and len(hosts) == 1:
        kept[fresh.pop()] = own
    return {**kept, **{host: f"{own}-{host}" for host in fresh}}


def _some(name: str, answer: Answer) -> Answer:
    if not answer.values:
        raise LookFailed(f"{name} has no addresses")
    return answer


def _at(host: str, port: int | None) -> str | None:
    return None if port is None else join_host_port(host, port)
