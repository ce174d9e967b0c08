"""Fronts: the addresses where clients connect, and the pools that each of them and its hosts reach.

Rules:

1. A host has routes to its own pools only. The picker knows all pools, so what it picks of another
   pool has no route there: 404, as if the pool did not exist.
2. Pools with common replicas are reached together: a replica serves whatever model a body names.
3. Of the pools of a host that share a form exactly one is the default, as in the whole fleet.
4. A client chooses the host name that it sends, so host names separate traffic but protect nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xds_server.fleet.rules.problem import Location, Problem, listed, repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.model.listener import FurtherListener, ListenerSpec, VirtualHost


class FrontHost(NamedTuple):
    """FrontHost names and their pools."""

    label: str
    domains: tuple[str, ...]
    pools: tuple[str, ...] | None
    """Names of the pools; ``None`` = all."""


class Front(NamedTuple):
    """One address."""

    name: str
    """Empty for the fleet's listener itself."""
    spec: ListenerSpec
    hosts: tuple[FrontHost, ...]
    operators: bool = False
    """Whether calls that change replicas are taken."""


def fronts(spec: ListenerSpec) -> tuple[Front, ...]:
    """Return the listener and the further ones, with the settings that hold for each."""
    main = Front("", spec, _hosts(spec.hosts, spec.pools))
    return (
        main,
        *(
            Front(one.name, _as(spec, one), _hosts(one.hosts, one.pools), one.operators)
            for one in spec.further
        ),
    )


def exposed(fleet: Fleet, host: FrontHost) -> Fleet:
    """Return the fleet with the pools of a host alone."""
    if host.pools is None:
        return fleet
    pools = tuple(pool for pool in fleet.pools if pool.name in host.pools)
    return fleet.model_copy(update={"pools": pools})


def addresses(spec: ListenerSpec) -> tuple[str, ...]:
    """Return all addresses where Envoy listens."""
    return (spec.address, *(each.address for each in spec.further))


def front_rules(fleet: Fleet, defaults: Callable[[Fleet], Iterable[Problem]]) -> Iterator[Problem]:
    """Yield the problems of addresses, host names and their pools.

    Args:
        fleet: The fleet.
        defaults: Yields the forms that a fleet's pools share without one default.
    """
    spec = fleet.listener
    at: Location = ("listener",)
    if spec.http3 and spec.tls is None:
        yield Problem((*at, "http3"), "HTTP/3 is always encrypted; write `tls` too")
    if spec.http3 and spec.tls is not None and spec.tls.client_ca is not None:
        yield Problem(
            (*at, "http3"),
            "Envoy asks clients for no certificate over HTTP/3, so `client_ca` would be got round; "
            "remove one of the two",
        )
    if spec.http3 and spec.proxy_protocol:
        yield Problem((*at, "http3"), "UDP has no PROXY header; remove one of the two")
    further: Location = (*at, "further")
    yield from repeated([each.name for each in spec.further], further, "name", "listener")
    seen = {spec.address}
    for position, each in enumerate(spec.further):
        if each.address in seen:
            yield Problem(
                (*further, position, "address"), f"{each.address} is another listener's address"
            )
        seen.add(each.address)
    every: list[tuple[Location, ListenerSpec | FurtherListener]] = [(at, spec)]
    every += [((*further, n), each) for n, each in enumerate(spec.further)]
    for place, one in every:
        if one.hosts or one.pools is not None:
            yield from _reached(place, fleet, one, defaults)


def _reached(
    at: Location,
    fleet: Fleet,
    one: ListenerSpec | FurtherListener,
    defaults: Callable[[Fleet], Iterable[Problem]],
) -> Iterator[Problem]:
    names = {pool.name for pool in fleet.pools}
    taken: set[str] = set()
    groups: list[tuple[Location, tuple[str, ...]]] = [
        ((*at, "hosts", n, "pools"), host.pools) for n, host in enumerate(one.hosts)
    ]
    if one.pools is not None:
        groups.append(((*at, "pools"), one.pools))
    for n, host in enumerate(one.hosts):
        for m, name in enumerate(host.names):
            if name in taken:
                yield Problem(
                    (*at, "hosts", n, "names", m), f"'{name}' is named twice; name it once"
                )
            taken.add(name)
    for place, pools in groups:
        yield from repeated(pools, place, None, "pool")
        unknown = [each for each in pools if each not in names]
        for each in unknown:
            yield Problem(
                (*place, pools.index(each)), f"there is no pool '{each}'; there are {listed(names)}"
            )
        if unknown:
            continue
        yield from _split(place, fleet, pools)
        part = exposed(fleet, FrontHost("", (), pools))
        for problem in defaults(part):
            yield Problem(place, f"of the pools {listed(pools)} alone: {problem.message}")


def _split(at: Location, fleet: Fleet, pools: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the pools whose replicas are reached through another pool."""
    here = [pool for pool in fleet.pools if pool.name in pools]
    owner = {each.id: pool.name for pool in here for each in pool.endpoints}
    finder = {
        each: pool.name
        for pool in here
        for source in pool.endpoints_from
        for each in source.reaches
    }
    for pool in fleet.pools:
        if pool.name in pools:
            continue
        text = "serves its models too; name both pools, or give each replicas of its own"
        common = next((each.id for each in pool.endpoints if each.id in owner), None)
        found = {
            finder[each]
            for source in pool.endpoints_from
            for each in source.reaches
            if each in finder
        }
        if common is not None:
            yield Problem(
                at,
                f"pool '{pool.name}' is not reached here, but its replica '{common}' is, through "
                f"pool '{owner[common]}', and {text}",
            )
        elif found:
            yield Problem(
                at,
                f"pool '{pool.name}' is not reached here, but pool '{min(found)}', which finds the "
                f"same replicas, is, and {text}",
            )


def _hosts(hosts: tuple[VirtualHost, ...], others: tuple[str, ...] | None) -> tuple[FrontHost, ...]:
    named = (FrontHost(f"host-{n}", each.names, each.pools) for n, each in enumerate(hosts))
    return (*named, FrontHost("all", ("*",), others))


def _as(spec: ListenerSpec, one: FurtherListener) -> ListenerSpec:
    return spec.model_copy(
        update={
            "address": one.address,
            "tls": one.tls,
            "proxy_protocol": one.proxy_protocol,
            "http3": False,
            "pools": one.pools,
            "hosts": one.hosts,
            "further": (),
        }
    )
