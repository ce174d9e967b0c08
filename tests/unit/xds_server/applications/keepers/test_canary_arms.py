"""The replicas of a rollout's variants: what falls, starves, was refused or differs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.fleets import endpoint, fleet, pool
from xds_server.applications.canary.controller import RolloutSpec
from xds_server.applications.canary.guards import LEAST_COPIES
from xds_server.applications.keepers.canary_arms import MAX_TOLD, CanaryArms
from xds_server.applications.loading.plan import Answered, sum_of
from xds_server.applications.traffic.replicas import Condition, State
from xds_server.fleet.change import BadChange

SPEC = RolloutSpec("llm-1", "llm", "canary", "stable", {"stable": 1, "canary": 0}, 1_000_003, 100.0)
FLEET = fleet(
    pool(
        default=True,
        variants=[{"name": "stable"}, {"name": "canary", "weight": 0}],
        endpoints=[
            endpoint(1, variant="stable"),
            endpoint(2, variant="stable", draining=True),
            endpoint(3, variant="canary"),
            endpoint(4, variant="canary"),
        ],
    )
)


class Seen:
    """What pickers see, loads that ended, and the answers of replicas."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], State] = {}
        self.ended: list[Any] = []
        self.unlike: list[str] = []
        self.asked: list[tuple[str, ...]] = []
        self.counts: dict[str, Answered] = {}
        loads = SimpleNamespace(
            operations=lambda *_: self.ended,
            actions=SimpleNamespace(parity=self._parity, answered=self._answered),
        )
        control = SimpleNamespace(fleet=FLEET)
        self.arms = CanaryArms(control, lambda: self.states, loads)

    async def _parity(self, _pool: str, _model: str, ids: tuple[str, ...]) -> tuple[list, list]:
        self.asked.append(ids)
        if self.unlike == ["gone"]:
            raise BadChange("too many replicas")
        return [], self.unlike

    async def _answered(self, _pool: str, model: str, ids: list[str]) -> dict[str, Answered]:
        if model != FLEET.pools[0].match.models[0]:
            return {}
        return {each: self.counts[each] for each in ids if each in self.counts}

    def leave(self, name: str, condition: str = "ejected") -> None:
        """Let all pickers leave a replica alone."""
        self.states["llm", name] = State((Condition(condition),), pickers=1)


def test_usable_are_those_that_get_new_requests() -> None:
    """One that drains or is left alone is not; what no picker reports on is."""
    seen = Seen()
    stable, canary = seen.arms(SPEC, "stable"), seen.arms(SPEC, "canary")
    assert (stable.total, stable.usable, canary.total, canary.usable) == (2, 1, 2, 2)
    seen.leave("r3", "low-gpu-memory")
    canary = seen.arms(SPEC, "canary")
    assert (canary.usable, list(canary.starved)) == (1, ["r3"])


def test_a_fall_is_counted_once_however_often_one_looks() -> None:
    """From in use to left alone; another rollout begins anew, without what is down already."""
    seen = Seen()
    seen.arms(SPEC, "canary")
    for _ in range(3):
        seen.leave("r4")
        seen.arms(SPEC, "canary")
        assert seen.arms(SPEC, "canary").usable == 1
        seen.states.clear()
        seen.arms(SPEC, "canary")
    assert seen.arms(SPEC, "canary").falls == [("r4", 3)]
    seen.leave("r4")
    assert seen.arms(SPEC._replace(rollout="llm-2"), "canary").falls == []


def test_loads_count_that_were_refused_on_the_canary_since_it_began() -> None:
    """Not earlier ones, those of stable, those that succeeded, and no more than are told."""

    def load(**other: Any) -> Any:
        usual = {
            "kind": "load",
            "phase": "undone",
            "model": "m",
            "why": "no memory",
            "began_unix_ms": 100_001,
            "targets": [SimpleNamespace(id="r3")],
        }
        return SimpleNamespace(**{**usual, **other})

    seen = Seen()
    seen.ended = [
        load(began_unix_ms=99_000),
        load(targets=[SimpleNamespace(id="r1")]),
        load(phase="done"),
        load(kind="unload"),
    ]
    assert list(seen.arms(SPEC, "canary").refused) == []
    seen.ended += [load()] * 9
    assert list(seen.arms(SPEC, "canary").refused) == ["m: no memory"] * MAX_TOLD


async def test_differences_among_the_canarys_replicas_are_kept_until_the_next_question() -> None:
    """Replicas of stable may have another version; a question that cannot be asked is none."""
    seen = Seen()
    seen.unlike = ["r4 has no version 2"]
    await seen.arms.compare([SPEC])
    assert seen.asked == [("r3", "r4")] * len(FLEET.pools[0].match.models)
    (told,) = set(seen.arms(SPEC, "canary").differences)
    assert told.endswith("r4 has no version 2")
    seen.unlike = ["gone"]
    await seen.arms.compare([SPEC])
    assert list(seen.arms(SPEC, "canary").differences) == []


MS = 1_000_000


@pytest.mark.parametrize(
    ("canary", "told"),
    [
        (Answered(100, 1, 100, 3000 * MS), []),
        (Answered(100, 20, 100, 2900 * MS), []),
        (Answered(100, 40, 100, 2900 * MS), ["40 of 140 failed, of stable 1 %"]),
        (Answered(0, 40), ["40 of 40 failed, of stable 1 %"]),
        (Answered(100, 0, 100, 9100 * MS), ["they compute 91 ms, stable's 30 ms"]),
        (Answered(0, 19), []),
    ],
)
async def test_copies_are_judged_by_the_counters_of_the_replicas(
    canary: Answered, told: list[str]
) -> None:
    """Failures far above stable's, or inferences far longer, since the copies began."""
    seen, before = Seen(), Answered(5000, 4000, 5000, 10**15)
    seen.counts = {"r1": before, "r3": before, "r4": Answered()}
    await seen.arms.count([SPEC])
    assert (list(seen.arms(SPEC, "canary").copies), seen.arms(SPEC, "canary").uncopied) == (
        [],
        True,
    )
    seen.counts["r1"] = sum_of([before, Answered(99, 1, 99, 99 * 30 * MS)])
    seen.counts["r3"] = sum_of([before, canary])
    await seen.arms.count([SPEC])
    arm = seen.arms(SPEC, "canary")
    assert (list(arm.copies), arm.uncopied) == (told, canary.total < LEAST_COPIES)
    await seen.arms.count([])
    assert seen.arms(SPEC, "canary").copies == []


async def test_a_replica_that_restarted_or_does_not_tell_spoils_no_count() -> None:
    """Its new process began at 0; where none tells, nothing is known and nothing held."""
    seen = Seen()
    await seen.arms.count([SPEC])
    assert not seen.arms(SPEC, "canary").uncopied
    seen.counts = {"r1": Answered(100, 0), "r3": Answered(100, 30)}
    await seen.arms.count([SPEC])
    seen.counts = {"r1": Answered(200, 0), "r3": Answered(0, 15)}
    await seen.arms.count([SPEC])
    del seen.counts["r3"]
    await seen.arms.count([SPEC])
    seen.counts["r3"] = Answered(0, 25)
    await seen.arms.count([SPEC])
    assert list(seen.arms(SPEC, "canary").copies) == ["25 of 25 failed, of stable 0 %"]
