"""Clients of one ADS stream in both variants, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidegate_api.names import (
    CLUSTER_TYPE,
    ENDPOINT_TYPE,
    EXTENSION_TYPE,
    LISTENER_TYPE,
    POOL_TYPE,
    ROUTE_TYPE,
    RUNTIME_TYPE,
)
from xds_server.protocol.messages import DeltaRequest, ResourceResponse, SotwRequest, short_type
from xds_server.protocol.snapshot import Snapshot
from xds_server.protocol.stream import DeltaStream, SotwStream

if TYPE_CHECKING:
    from collections.abc import Mapping


URLS = {
    "CDS": CLUSTER_TYPE,
    "EDS": ENDPOINT_TYPE,
    "LDS": LISTENER_TYPE,
    "RDS": ROUTE_TYPE,
    "RTDS": RUNTIME_TYPE,
    "ECDS": EXTENSION_TYPE,
    "POOL": POOL_TYPE,
}


def snap(**types: Mapping[str, str]) -> Snapshot:
    """Build a snapshot: short type -> name -> content."""
    return Snapshot.of(
        {URLS[t]: {n: v.encode() for n, v in messages.items()} for t, messages in types.items()}
    )


def shown(responses: list[ResourceResponse]) -> list[tuple[str, list[str]]]:
    """Show what was sent: types and names, removals with a minus."""
    return [
        (short_type(r.type_url), [x.name for x in r.resources] + [f"-{n}" for n in r.removed])
        for r in responses
    ]


class Sotw:
    """A client of the state-of-the-world variant, driven by the test."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.stream = SotwStream("s")
        self.last: dict[str, ResourceResponse] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        if snapshot is not None:
            self.push(snapshot)

    def push(self, snapshot: Snapshot, now: float = 0.0) -> list[tuple[str, list[str]]]:
        return self._keep(self.stream.on_snapshot(snapshot, now))

    def ask(self, kind: str, *names: str, version: str = "") -> list[tuple[str, list[str]]]:
        self.names[kind] = names
        last = self.last.get(kind)
        nonce = last.nonce if last else ""
        return self._send(SotwRequest(URLS[kind], names, version, nonce))

    def ack(self, kind: str, now: float = 0.0) -> list[tuple[str, list[str]]]:
        last = self.last[kind]
        request = SotwRequest(URLS[kind], self.names[kind], last.version, last.nonce)
        return self._send(request, now)

    def nack(self, kind: str, text: str = "bad", now: float = 0.0) -> list[tuple[str, list[str]]]:
        last = self.last[kind]
        request = SotwRequest(URLS[kind], self.names[kind], "", last.nonce, text)
        return self._send(request, now)

    def _send(self, request: SotwRequest, now: float = 0.0) -> list[tuple[str, list[str]]]:
        return self._keep(self.stream.on_request(request, now).responses)

    def _keep(self, responses: list[ResourceResponse]) -> list[tuple[str, list[str]]]:
        self.last.update({short_type(r.type_url): r for r in responses})
        return shown(responses)


class Delta(Sotw):
    """The same for the delta variant."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        super().__init__()
        self.stream = DeltaStream("d")  # type: ignore[assignment] # a sibling with the same calls
        if snapshot is not None:
            self.push(snapshot)

    def ask(
        self,
        kind: str,
        *names: str,
        drop: tuple[str, ...] = (),
        held: Mapping[str, str] | None = None,
        nonce: str = "",
    ) -> list[tuple[str, list[str]]]:
        return self._send(DeltaRequest(URLS[kind], names, drop, held or {}, nonce))

    def ack(self, kind: str, now: float = 0.0) -> list[tuple[str, list[str]]]:
        return self._send(DeltaRequest(URLS[kind], nonce=self.last[kind].nonce), now)

    def nack(self, kind: str, text: str = "bad", now: float = 0.0) -> list[tuple[str, list[str]]]:
        return self._send(DeltaRequest(URLS[kind], nonce=self.last[kind].nonce, error=text), now)


BOTH = pytest.mark.parametrize("client_type", [Sotw, Delta])

BASE = {"CDS": {"c1": "1"}, "EDS": {"c1": "1"}, "LDS": {"l": "1"}, "RDS": {"r": "1"}}


def settled(client: Sotw) -> Sotw:
    """Subscribe like Envoy and acknowledge everything."""
    for kind, names in {"CDS": (), "EDS": ("c1",), "LDS": (), "RDS": ("r",)}.items():
        client.ask(kind, *names)
    for kind in ("CDS", "EDS", "LDS", "RDS"):
        assert client.ack(kind) == []
    assert client.stream.standing().state == "SYNCED"
    return client


def state(client: Sotw, kind: str, now: float = 0.0) -> str:
    """Return the state of one type."""
    return {v.short: v.state for v in client.stream.views(now)}[kind]


def held(client: Sotw, kind: str) -> dict[str, tuple[str, bool]]:
    """Return state, and whether a version is acknowledged, of each resource of a type."""
    return {
        each.name: (each.state, bool(each.version_acked))
        for each in client.stream.resources()
        if each.short == kind
    }
