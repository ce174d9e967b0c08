"""An admission of found replicas, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from support.fleets import pool
from xds_server.applications.discovery.admission import Admission
from xds_server.applications.discovery.values import Found, Observation
from xds_server.fleet.model.fleet import PoolSpec

FILE = "file /f"
DNS = "dns t.example:8000/8001"


def spec(
    *,
    dns: bool = False,
    endpoints: Iterable[dict[str, object]] = (),
    protocols: Iterable[str] | None = None,
    drained: Iterable[str] = (),
    **membership: object,
) -> PoolSpec:
    """Return a pool with a file as source and, if asked for, a DNS name."""
    source: dict[str, object] = {"file": "/f"}
    if protocols is not None:
        source["protocols"] = list(protocols)
    sources = [source]
    if dns:
        sources.append({"dns": {"name": "t.example", "http": 8000, "grpc": 8001}})
    return PoolSpec.model_validate(
        pool(
            variants=[{"name": "stable", "weight": 9}, {"name": "canary", "weight": 1}],
            endpoints=list(endpoints),
            endpoints_from=sources,
            drained=list(drained),
            membership={"admit": "found", **membership},
        )
    )


def found(number: int, **fields: object) -> Found:
    """Return a replica, called ``rN``, at an address of its own."""
    host = f"10.0.{number // 200}.{number % 200 + 1}"
    return replace(Found(f"r{number}", f"{host}:8000", f"{host}:8001"), **fields)  # type: ignore[arg-type]


def listed(*numbers: int, **fields: object) -> Observation:
    """Return the answer with these replicas."""
    return Observation(tuple(found(number, **fields) for number in numbers))


class Bench:
    """An admission with a clock that tests move."""

    def __init__(self, of: PoolSpec, members=()) -> None:
        self.pool = of
        self.admission = Admission(of, members)
        self.now = 1000.0
        self.in_flight: dict[str, int] = {}

    def settle(self, after: float = 0.0) -> dict[str, str]:
        """Return the state of each member."""
        self.now += after
        members = self.admission.settle(self.now, int(self.now * 1000), self.in_flight)
        return {
            m.spec.id: "held" if m.held else "draining" if m.spec.draining else "active"
            for m in members
        }

    def see(self, observation: Observation, after: float = 0.0, origin: str = FILE):
        """Observe, then settle."""
        self.now += after
        self.admission.observe(origin, observation)
        return self.settle()

    def member(self, name: str):
        """Return a member by its id."""
        return next(m for m in self.admission.members if m.spec.id == name)
