"""Whether replicas may be stopped, from what clients hold and pickers report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xds_server.applications.traffic.stopping import PickerView, ReplicaUse, waits_for
from xds_server.fleet.change import UnknownName
from xds_server.fleet.model.fields import split_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xds_server.applications.traffic.stopping import PickerUses
    from xds_server.control.ads import ClientDirectory
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec
    from xds_server.protocol.messages import ClientView
    from xds_server.snapshots.client_view import ClientSnapshots


class Stop(NamedTuple):
    """Whether replicas may be stopped."""

    waits_for: tuple[str, ...]
    """What has to end before; empty = they may."""
    in_flight: int
    """Requests in flight, as far as pickers have reported."""
    sequences: int
    pickers: int
    """Number of connected pickers."""

    @property
    def safe(self) -> bool:
        """They may be stopped."""
        return not self.waits_for


class Stopping:
    """Says whether replicas may be stopped.

    Args:
        control: The fleet in force.
        observed: The connected clients.
        reports: What pickers report.
        view: Returns what clients are to hold now.
    """

    def __init__(
        self,
        control: Control,
        observed: ClientDirectory,
        reports: PickerUses,
        view: Callable[[], ClientSnapshots],
    ) -> None:
        self._control = control
        self._observed = observed
        self._reports = reports
        self._view = view

    def ids(self, wanted: str) -> frozenset[str]:
        """Return the replicas that are meant: an id, ``pool/id``, an address, or a host for all.

        Raises:
            UnknownName: There is none.
        """
        endpoints = [(pool.name, each) for pool in self._pools() for each in pool.endpoints]
        found = frozenset(each.id for _, each in endpoints if each.id == wanted)
        found = found or frozenset(e.id for pool, e in endpoints if f"{pool}/{e.id}" == wanted)
        found = found or frozenset(e.id for _, e in endpoints if wanted in _places(e))
        if not found:
            raise UnknownName("endpoint", wanted, dict.fromkeys(e.id for _, e in endpoints))
        return found

    def state(self, ids: frozenset[str]) -> Stop:
        """Return whether all of these replicas may be stopped; one that is gone drains."""
        clients, uses = self._observed.clients(), self._reports.uses()
        acknowledged = {each.node: each.pools_acked for each in clients if each.kind == "picker"}
        since = {
            each.node: each.connected_s
            for each in clients
            if each.kind == "picker"
            and any(one.short == "POOL" and one.state == "SYNCED" for one in each.types)
        }
        reasons: list[str] = []
        in_flight = sequences = 0
        for endpoint in sorted(ids):
            pickers = [
                PickerView(node, None, current=False)
                if (use := uses.get(node)) is None
                else PickerView(
                    node,
                    use.age_s,
                    node in since and use.includes(nonce, since[node]),
                    use.in_flight.get(endpoint, 0),
                    use.sequences.get(endpoint, 0),
                )
                for node, nonce in sorted(acknowledged.items())
            ]
            in_flight += sum(each.in_flight for each in pickers)
            sequences += sum(each.sequences for each in pickers)
            use_of = ReplicaUse(
                endpoint,
                [
                    p.name
                    for p in self._pools()
                    for e in p.endpoints
                    if e.id == endpoint and not e.draining
                ],
                tuple(self._drawn(endpoint, clients)),
                pickers,
                self._expected(),
                self._reports.gone(),
            )
            reasons += [each for each in waits_for(use_of) if each not in reasons]
        return Stop(tuple(reasons), in_flight, sequences, len(acknowledged))

    def _pools(self) -> Sequence[PoolSpec]:
        return self._control.fleet.pools if self._control.revision else ()

    def _expected(self) -> int:
        return len(self._control.fleet.pickers.addresses) if self._control.revision else 0

    def _drawn(self, endpoint: str, clients: Sequence[ClientView]) -> Iterator[str]:
        """Yield which clients may still give a replica new requests that the fleet does not."""
        view = self._view()
        active = view.pools_of(endpoint)
        if active:
            yield f"pickers have not been told yet in pool {', '.join(active)}"
        addresses = {
            address
            for pool in self._pools()
            for each in pool.endpoints
            if each.id == endpoint
            for address in (each.http, each.grpc)
            if address is not None
        }
        if view.chosen(addresses):
            yield "Envoys have not been told yet"
        for client in clients:
            if client.kind == "envoy" and any(
                each.short == "EDS" and each.state not in {"SYNCED", "NOT_SENT"}
                for each in client.types
            ):
                yield f"Envoy {client.node} has not acknowledged its endpoints"


def _places(endpoint: EndpointSpec) -> set[str]:
    """Return the addresses of a replica, and their host."""
    found = set[str]()
    for address in (endpoint.http, endpoint.grpc):
        if address is not None:
            found |= {address, split_host_port(address)[0]}
    return found
