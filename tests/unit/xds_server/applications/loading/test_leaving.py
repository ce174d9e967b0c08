"""Models leave replicas: what clients are told, what is waited for, and who holds what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.fleets import endpoint, fleet, pool
from tidegate_api.fleet.v1 import report_pb2 as pb
from xds_server.applications.loading import leaving as module
from xds_server.applications.loading.leaving import (
    RUNS_S,
    TOLD_S,
    LeavingModels,
    ModelDrained,
    TooManyHeld,
)
from xds_server.fleet.members.members import leaving
from xds_server.fleet.view import View
from xds_server.server.reports import PickerReports
from xds_server.snapshots.client_view import ClientSnapshots
from xds_server.snapshots.stages import plan

FLEET = fleet(
    pool(
        default=True,
        match={"models": ["m", "n"]},
        endpoints=[endpoint(1), endpoint(2), endpoint(3)],
    )
)


class Clients:
    """A picker and an Envoy that acknowledge at once, and what may go wrong with them."""

    revision = 1

    def __init__(self) -> None:
        self.now, self.nonce = 100.0, 0
        self.fleet = FLEET
        self.told = ClientSnapshots(None, None)
        self.reports = PickerReports(lambda: None, clock=lambda: self.now)
        self.pickers = ["p1"]
        self.deaf: set[str] = set()
        """Pickers that do not acknowledge."""
        self.envoy = "SYNCED"
        self.runs: dict[tuple[str, str], list[int]] = {}
        """Requests that run for a model on a replica, report by report; the last one stays."""
        self.placed = 0
        self.published: list[Any] = []
        self.models = LeavingModels(
            self,
            self.clients,  # type: ignore[arg-type]  # enough
            self.reports,
            lambda name: self.told.leaving(name),  # noqa: PLW0108 - it is another one later
            self.tell_envoys,
            lambda: self.now,
            self.pause,
        )

    async def publish_leaving(self, marks: Any) -> None:
        """Bring the pickers to a fleet with these marks."""
        self.published.append(marks)
        *_, stage = [
            each for each in plan(None, View(leaving(FLEET, marks))) if each.audience == "picker"
        ]
        self.told, self.nonce = ClientSnapshots(stage.snapshot, None), self.nonce + 1
        self.report()

    async def tell_envoys(self) -> None:
        """Count the looks at placement."""
        self.placed += 1

    async def pause(self, seconds: float) -> None:
        """Let time pass; pickers report."""
        self.now += seconds
        self.report()

    def report(self) -> None:
        """Have the pickers report."""
        for name in self.pickers:
            taken = "" if name in self.deaf else f"n-{self.nonce}"
            loads = [
                pb.LeavingLoad(
                    id=at, model=model, in_flight=counts.pop(0) if counts[1:] else counts[0]
                )
                for (at, model), counts in self.runs.items()
            ]
            report = pb.PickerReport(picker_id=name, taken=taken, leaving=loads)
            assert self.reports._take(name, 1, report) == ""

    def clients(self) -> list[Any]:
        """Return the connected clients."""
        found = [("e1", "envoy", "EDS", self.envoy)]
        found += [(name, "picker", "POOL", "SYNCED") for name in self.pickers]
        return [
            SimpleNamespace(
                node=node,
                kind=kind,
                connected_s=60.0,
                pools_acked=f"n-{self.nonce}",
                types=[SimpleNamespace(short=short, state=state)],
            )
            for node, kind, short, state in found
        ]


async def test_a_model_leaves_once_all_have_been_told_and_nothing_runs() -> None:
    """It is marked, Envoys are told, and the requests that run are waited for."""
    here = Clients()
    here.runs["r1", "m"] = [3, 2, 1, 0]
    assert await here.models.hold("x", ["r1"], "m") == ModelDrained()
    assert here.published == [(("r1", ("m",)),)]
    assert here.runs["r1", "m"] == [0]
    assert here.placed
    assert here.models.places() == {("r1", "m")}
    await here.models.release("x")
    assert here.published[1:] == [()]
    assert here.told.leaving("r1") == frozenset()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"deaf": {"p1"}}, "picker p1 has not acknowledged it"),
        ({"pickers": []}, "1 of the fleet's pickers are not connected"),
        ({"envoy": "STALE"}, "Envoy e1 has not acknowledged its endpoints"),
    ],
)
async def test_who_has_not_been_told_is_named_after_a_bound(
    wrong: dict[str, Any], words: str
) -> None:
    """Whoever unloads decides; a picker that is not there may be one that still picks."""
    here = Clients()
    for name, value in wrong.items():
        setattr(here, name, value)
    assert await here.models.hold("x", ["r1"], "m") == ModelDrained((words,))
    assert here.now == pytest.approx(100.0 + TOLD_S, abs=0.1)


async def test_a_picker_that_went_away_is_named() -> None:
    """By the id that it had."""
    here = Clients()
    here.report()
    here.pickers = []
    here.reports._latest.clear()
    here.reports._gone["p1"] = None
    found = await here.models.hold("x", ["r1"], "m")
    assert found.missing == ("picker p1 is not connected",)


async def test_what_runs_too_long_is_named() -> None:
    """The unload then goes on: Triton lets requests end."""
    here = Clients()
    here.runs["r1", "m"] = [2]
    found = await here.models.hold("x", ["r1"], "m")
    assert found == ModelDrained((), ("picker p1: 2 requests for m on r1",))
    assert here.now == pytest.approx(100.0 + RUNS_S, abs=0.2)


async def test_nothing_is_waited_for_where_a_model_leaves_all_replicas() -> None:
    """Its requests go there to the end."""
    here = Clients()
    here.runs["r1", "m"] = [2]
    assert await here.models.hold("x", ["r1", "r2", "r3"], "m") == ModelDrained()
    assert here.now == 100.0


async def test_a_mark_lasts_until_the_last_holder_lets_go() -> None:
    """Two operators may unload the same model, and others, at once."""
    here = Clients()
    await here.models.hold("x", ["r1", "r2"], "m")
    await here.models.hold("y", ["r1"], "m")
    await here.models.hold("y", ["r1"], "n")
    await here.models.release("x")
    assert here.models.marks() == (("r1", ("m", "n")),)
    await here.models.release("y")
    await here.models.release("y")
    assert here.models.marks() == ()


async def test_what_is_recalled_is_marked_before_anything_is_published() -> None:
    """A restart of the control server leaves no gap."""
    here = Clients()
    here.models.recall("x", {("r1", "m")})
    assert here.models.marks() == (("r1", ("m",)),)
    await here.models.release("x")
    assert here.published == [()]


async def test_models_that_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much changes nothing."""
    monkeypatch.setattr(module, "MAX_HELD", 2)
    here = Clients()
    await here.models.hold("x", ["r1", "r2"], "m")
    with pytest.raises(TooManyHeld, match="2 models"):
        await here.models.hold("y", ["r3"], "m")
    assert here.models.places() == {("r1", "m"), ("r2", "m")}


def test_fleets_without_marks_stay_the_same_objects() -> None:
    """And equal marks make the same one."""
    assert leaving(FLEET, ()) is FLEET
    assert leaving(FLEET, (("elsewhere", ("m",)),)) is FLEET
    made = leaving(FLEET, (("r2", ("m",)),))
    assert made is leaving(FLEET, (("r2", ("m",)),))
    assert [each.leaving for each in made.pools[0].endpoints] == [(), ("m",), ()]
    assert made.pools[0].endpoints[0] is FLEET.pools[0].endpoints[0]
