"""Whether replicas may be stopped, from what clients hold and pickers report."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from support.fleets import endpoint, fleet, pool
from tidegate_api.fleet.v1 import report_pb2 as pb
from xds_server.admin.stopping import Stopping
from xds_server.fleet.change import UnknownName, set_draining
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.view import View
from xds_server.protocol.snapshot import Snapshot
from xds_server.server.reports import MAX_GONE, PickerReports
from xds_server.snapshots.client_view import ClientSnapshots
from xds_server.snapshots.stages import plan


class Server:
    """A control server with an Envoy and a picker, which hold what the test says."""

    revision = 1

    def __init__(self, of: Fleet) -> None:
        self.now = 100.0
        self.fleet = of
        self.held: dict[str, Snapshot] = {}
        self.publish(of)
        self.reports = PickerReports(lambda: None, clock=lambda: self.now)
        self.nonces = {"p1": "n-1"}
        self.connected_s = 60.0
        self.states = {"EDS": "SYNCED", "POOL": "SYNCED"}

    def publish(self, of: Fleet, stages: int | None = None) -> None:
        """Bring clients to a fleet, or through the first of the stages that lead there."""
        for stage in plan(View(self.fleet) if self.held else None, View(of))[:stages]:
            self.held[stage.audience] = stage.snapshot
        self.fleet = of

    def clients(self) -> list[Any]:
        """Return the connected clients."""
        return [
            SimpleNamespace(
                node=node,
                kind=kind,
                connected_s=self.connected_s,
                pools_acked=self.nonces.get(node, ""),
                types=[SimpleNamespace(short=short, state=self.states[short])],
            )
            for node, kind, short in (("e1", "envoy", "EDS"), ("p1", "picker", "POOL"))
        ]

    def report(self, taken: str = "n-1", picker: str = "p1", **counts: int) -> None:
        """Receive a report: requests in flight, or with a leading ``s_`` open sequences."""
        loads = [
            pb.EndpointLoad(id=name.removeprefix("s_"), sequences=count)
            if name.startswith("s_")
            else pb.EndpointLoad(id=name, in_flight=count)
            for name, count in counts.items()
        ]
        report = pb.PickerReport(picker_id=picker, taken=taken, endpoints=loads)
        assert self.reports._take(picker, 1, report) == ""

    def waits_for(self, name: str = "r1") -> tuple[str, ...]:
        """Return what a replica's end waits for."""
        return self.stopping().state(self.stopping().ids(name)).waits_for

    def stopping(self) -> Stopping:
        """Return what is tested."""
        told = ClientSnapshots(self.held.get("picker"), self.held.get("envoy"))
        return Stopping(self, self, self.reports, lambda: told)  # type: ignore[arg-type]  # enough


@pytest.fixture
def server() -> Server:
    """Return a server on which r1 drains, as all clients know."""
    made = Server(fleet())
    made.publish(set_draining(made.fleet, "r1", True))
    made.report()
    return made


def test_a_drained_replica_is_safe_to_stop(server: Server) -> None:
    """Nobody gives it requests, and nothing is in flight."""
    assert server.waits_for() == ()


def test_one_that_does_not_drain_is_not(server: Server) -> None:
    """By any of its names."""
    said = ("r2 takes new requests in pool llm: drain it",)
    for name in ("r2", "llm/r2", "127.0.0.1:8020", "127.0.0.1:8021"):
        assert server.waits_for(name)[:1] == said
    assert len([each for each in server.waits_for("127.0.0.1") if "drain it" in each]) == 2


def test_requests_and_sequences_are_waited_for(server: Server) -> None:
    """Those of this replica."""
    server.report(r1=2, r2=1)
    assert server.waits_for() == ("picker p1: 2 requests in flight",)
    server.report(s_r1=1)
    assert server.waits_for() == ("picker p1: 1 open sequence",)
    server.report(r2=1)
    assert server.waits_for() == ()


def test_a_report_from_before_the_drain_says_nothing(server: Server) -> None:
    """The picker may have picked the replica since."""
    server.nonces["p1"] = "n-2"
    said = ("picker p1 has not reported since the last change of the fleet",)
    assert server.waits_for() == said
    server.states["POOL"] = "STALE"
    server.report("n-2")
    assert server.waits_for() == said
    server.states["POOL"] = "SYNCED"
    assert server.waits_for() == ()


def test_a_picker_that_has_nothing_yet_says_nothing(server: Server) -> None:
    """It has acknowledged no pools, and holds none from before."""
    server.nonces["p1"] = ""
    server.states["POOL"] = "NOT_SENT"
    server.report("")
    assert len(server.waits_for()) == 1


def test_a_picker_that_came_back_with_all_pools_is_sent_none(server: Server) -> None:
    """As after a restart of the control server: it holds them, and its next report counts."""
    server.report("old-7")
    server.now += 5
    server.nonces["p1"], server.connected_s = "", 2.0
    assert server.waits_for() == ("picker p1 has not reported since the last change of the fleet",)
    server.report("old-7")
    assert server.waits_for() == ()


def test_an_old_report_says_nothing(server: Server) -> None:
    """A frozen picker may still be asked by Envoys."""
    server.now += 20
    assert server.waits_for() == ("picker p1 has not reported for 20 s",)


def test_envoys_must_know_it_too(server: Server) -> None:
    """Without a picker they choose by themselves."""
    before = server.fleet
    server.publish(set_draining(server.fleet, "r2", True), stages=4)
    assert server.waits_for("r2") == ("Envoys have not been told yet",)
    server.fleet = before
    server.publish(set_draining(server.fleet, "r2", True))
    assert server.waits_for("r2") == ()
    server.states["EDS"] = "STALE"
    assert server.waits_for("r2") == ("Envoy e1 has not acknowledged its endpoints",)


def test_pickers_must_know_it_first(server: Server) -> None:
    """The last replica of a variant stays in use until another one has come."""
    server.publish(set_draining(server.fleet, "r3", True), stages=1)
    assert "pickers have not been told yet in pool llm" in server.waits_for("r3")


def test_a_replica_that_has_left_is_safe(server: Server) -> None:
    """It was known when the wait began; the pickers' ledgers still count."""
    ids = frozenset({"r1"})
    server.publish(
        fleet(pool(default=True, endpoints=[endpoint(2), endpoint(3, variant="canary")]))
    )
    assert server.stopping().state(ids).safe
    server.report(r1=1)
    assert server.stopping().state(ids).waits_for == ("picker p1: 1 request in flight",)


def test_an_unknown_name_is_an_error(server: Server) -> None:
    """A hook with a typing error must not stop anything."""
    with pytest.raises(UnknownName, match="no endpoint 'r11'; did you mean 'r1'"):
        server.waits_for("r11")


async def test_pickers_that_went_are_remembered_up_to_a_bound(server: Server) -> None:
    """The newest ones, and only while they are away."""

    async def session(picker: str) -> None:
        async def sent() -> AsyncIterator[pb.PickerReport]:
            yield pb.PickerReport(picker_id=picker)

        await server.reports.Report(sent(), None)

    for number in range(MAX_GONE + 2):
        await session(f"g{number}")
    assert server.reports.gone()[::-1] == [f"g{n}" for n in range(2, MAX_GONE + 2)]
    server.report(picker="g9")
    assert "g9" not in server.reports.gone()
