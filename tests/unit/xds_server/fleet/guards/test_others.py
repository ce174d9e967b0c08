"""Changes that know an older fleet do not undo what operators did since."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.guards.others import (
    MAX_NAMED,
    ChangedMeanwhile,
    UndoesOthers,
    undone,
    with_drains,
)
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.revision import Revision

IDS = range(1, 6)
DRAINS = st.sets(st.sampled_from(IDS))


def written(drains: set[int], canary: int = 10) -> Fleet:
    """Return a fleet of which these replicas drain."""
    return fleet(
        pool(
            default=True,
            endpoints=[endpoint(each, draining=each in drains) for each in IDS],
            variants=[{"name": "stable", "weight": 90}, {"name": "canary", "weight": canary}],
        )
    )


def draining(checked: Fleet) -> set[str]:
    """Return the replicas of a fleet that drain."""
    return {each.id for each in checked.pools[0].endpoints if each.draining}


@given(before=DRAINS, after=DRAINS)
def test_each_drain_that_ends_is_named(before: set[int], after: set[int]) -> None:
    """And nothing else of a fleet without a rollout."""
    named = undone(written(before), written(after, canary=20), ())
    assert named == [f"the drain of r{each} (pool 'llm')" for each in sorted(before - after)]


def test_a_replica_that_is_removed_drains_no_more() -> None:
    """That is what a drain is for."""
    gone = fleet(pool(default=True, endpoints=[endpoint(2)]))
    live = fleet(pool(default=True, endpoints=[endpoint(1, draining=True), endpoint(2)]))
    assert undone(live, gone, ()) == []


def test_weights_of_a_running_canary_are_named() -> None:
    """Those of other pools are what the author wants."""
    (named,) = undone(written(set()), written(set(), canary=20), {"llm"})
    assert "running canary of pool 'llm'" in named
    assert undone(written(set()), written(set()), {"llm"}) == []


@given(wanted=DRAINS, live=DRAINS)
def test_drains_are_added_and_named(wanted: set[int], live: set[int]) -> None:
    """A rollback ends none, and begins those that it had."""
    result, kept = with_drains(written(wanted), written(live))
    assert draining(result) == {f"r{each}" for each in wanted | live}
    assert len(kept) == len(live - wanted)


def test_drains_of_found_replicas_are_kept_where_the_pool_finds_replicas() -> None:
    """They are a list: the fleet does not write such replicas."""
    source = [{"file": "/srv/replicas.json"}]
    now = fleet(pool(default=True, endpoints=[endpoint(1)], endpoints_from=source, drained=["f7"]))
    then = fleet(pool(default=True, endpoints=[endpoint(1)], endpoints_from=source))
    result, kept = with_drains(then, now)
    assert result.pools[0].drained == ("f7",)
    assert kept == ["f7 of pool 'llm' drains on; `tidegate undrain llm/f7` ends that"]


def test_a_refusal_names_the_revisions_since() -> None:
    """With their authors, so that operators can talk."""
    since = [Revision(n, 0, "ann", "", ("pool llm: a", "b")) for n in range(14, 11, -1)]
    said = str(ChangedMeanwhile(12, 14, since))
    assert "revision 14 is in force, not 12" in said
    assert "14 by ann: pool llm: a and 1 more; 13 by ann" in said
    assert "12 by ann" not in said
    assert "--based-on 14" in said


@pytest.mark.parametrize("count", [MAX_NAMED, MAX_NAMED + 3])
def test_messages_are_bounded(count: int) -> None:
    """A thousand drains are not named one by one."""
    said = str(UndoesOthers([f"the drain of r{each}" for each in range(count)], 4))
    assert said.count("the drain of") == MAX_NAMED
    assert ("and 3 more" in said) == (count > MAX_NAMED)
