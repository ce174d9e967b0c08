"""Membership: what sources find becomes what clients get."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from support.findings import DNS, FILE, Finding, answer
from support.fleets import fleet, pool
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.names import CLUSTER_TYPE, POOL_TYPE, ROUTE_TYPE
from xds_server.applications.discovery.values import Found, Observation
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.change import UnknownName, set_draining
from xds_server.fleet.members.members import Members, found_ids
from xds_server.fleet.members.stored import dump, load
from xds_server.fleet.rules.fleet import problems
from xds_server.fleet.store import RevisionStore


async def test_what_is_found_reaches_clients_without_a_revision(finding: Finding) -> None:
    """Over EDS and Pool alone: clusters and routes stay the same bytes."""
    before = finding.world.publisher.in_force("envoy")
    finding.sources[FILE].found(answer(1, 2))
    assert await finding.step() == {"r1": False, "r2": False}
    after = finding.world.publisher.in_force("envoy")
    assert finding.world.control.revision == 1
    for kind in (CLUSTER_TYPE, ROUTE_TYPE):
        assert before.resources(kind) == after.resources(kind)


async def test_equal_answers_publish_nothing(finding: Finding) -> None:
    """Sources repeat themselves."""
    finding.sources[FILE].found(answer(1, 2))
    await finding.step()
    count = len(finding.world.publisher.published)
    finding.sources[FILE].found(answer(1, 2))
    await finding.step(60)
    assert len(finding.world.publisher.published) == count


async def test_readiness_is_asked_at_the_model(store: RevisionStore) -> None:
    """As health checks do; until then the replica gets no work."""
    made = Finding(store)
    spec = pool(variants=[{"name": "stable"}], endpoints=[], endpoints_from=[{"file": "/f"}])
    await made.start(fleet(spec))
    made.sources[FILE].found(answer(1))
    await made.step()
    made.sources[FILE].found(answer(1, 2))
    assert await made.step(5) == {"r1": False}
    waiting = list(made.membership._pools["llm"].admission.waiting())
    await made.membership._probe("llm", *waiting[0])
    assert made.asked == [("10.0.0.2:8000", "/v2/models/llm-model/ready")]
    assert await made.step() == {"r1": False}
    made.ready.add("10.0.0.2:8000")
    await made.membership._probe("llm", *waiting[0])
    assert await made.step() == {"r1": False, "r2": False}
    await made.stop()


async def test_a_found_replica_can_be_drained(finding: Finding) -> None:
    """By its id, as a revision; a fleet without it is no reason to forget."""
    finding.sources[FILE].found(answer(1, 2))
    await finding.step()
    control = finding.world.control
    change = await control.change(
        lambda fleet: set_draining(fleet, "r2", True, found_ids(control.fleet)), ChangeOptions()
    )
    assert change.changes == ("pool llm: drained +r2",)
    assert finding.told() == {"r1": False, "r2": True}
    await control.change(
        lambda fleet: set_draining(fleet, "r2", False, found_ids(control.fleet)), ChangeOptions()
    )
    assert finding.told() == {"r1": False, "r2": False}
    with pytest.raises(UnknownName):
        await control.change(
            lambda fleet: set_draining(fleet, "r3", True, found_ids(control.fleet)), ChangeOptions()
        )


async def test_a_restart_begins_with_what_was_stored(finding: Finding) -> None:
    """Until the sources have answered; one that has changed meanwhile is taken over."""
    finding.sources[FILE].found(answer(1, 2))
    finding.sources[DNS].found(answer(7))
    await finding.step()
    known = load(dump(finding.stored[-1]))
    with closing(RevisionStore(None)) as other:
        again = Finding(other)
        await again.start(members=known)
        assert again.told() == {"r1": False, "r2": False, "r7": False}
        again.sources[FILE].found(answer(1, 2, 3))
        assert (await again.step()).keys() == {"r1", "r2", "r3", "r7"}
        await again.stop()


async def test_objectives_of_the_lower_band_reach_pickers(finding: Finding) -> None:
    """Of all sources of a pool; those stored stay until each source has answered."""

    def told(of: Finding) -> list[str]:
        pickers = of.world.publisher.in_force("picker")
        assert pickers is not None
        return list(
            pool_pb2.Pool.FromString(pickers.resources(POOL_TYPE)["llm"].message).low_objectives
        )

    finding.sources[FILE].found(replace(answer(1, 2), low_objectives=("batch",)))
    await finding.step()
    assert told(finding) == ["batch"]
    finding.sources[DNS].found(replace(answer(7), low_objectives=("bulk",)))
    await finding.step()
    assert told(finding) == ["batch", "bulk"]
    text = dump(finding.stored[-1])
    with closing(RevisionStore(None)) as other:
        again = Finding(other)
        await again.start(members=load(text))
        assert told(again) == ["batch", "bulk"]
        again.sources[FILE].found(answer(1, 2))
        await again.step()
        assert told(again) == ["batch", "bulk"]
        again.sources[DNS].found(answer(7))
        await again.step()
        assert told(again) == []
        assert "objectives" not in dump(again.stored[-1])
        await again.stop()


def test_stored_members_that_cannot_be_read_are_refused() -> None:
    """A damaged value costs a warning."""
    for text in ("", "[]", '{"llm": [{}]}', "{", '["/low_objectives"]', '{"/low_objectives": 7}'):
        with pytest.raises(ValueError, match="cannot be read"):
            load(text)


async def test_a_publication_that_fails_is_tried_again(
    finding: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients keep what they have meanwhile."""
    await finding.step()

    async def fail(_members: Members) -> None:
        raise RuntimeError("no")

    finding.sources[FILE].found(answer(1))
    with monkeypatch.context() as patch:
        patch.setattr(finding.world.control, "publish_members", fail)
        assert await finding.membership._pass() == 2.0
    assert await finding.step() == {"r1": False}


async def test_a_confirmation_needs_a_pool_that_finds(finding: Finding) -> None:
    """Its name is checked."""
    with pytest.raises(UnknownName, match="pool that finds replicas"):
        finding.membership.confirm("other")
    assert finding.membership.confirm("llm") == 0


async def test_a_found_replica_at_another_ones_address_is_left_out(finding: Finding) -> None:
    """Nor at Envoy's own, nor at a picker's: the fleet that is published breaks no rule."""
    twice = Found("r9", "10.0.0.1:8000", "10.0.0.9:8001")
    loop = Found("r8", "127.0.0.1:10000", "10.0.0.8:8001")
    nowhere = Found("r7", "0.0.0.0:80", "10.0.0.7:8001")
    finding.sources[FILE].found(Observation((*answer(1).endpoints, twice, loop, nowhere)))
    assert await finding.step() == {"r1": False}
    control = finding.world.control
    assert len(control.members.published(control.written).left_out) == 3
    assert not problems(control.fleet)


async def test_a_found_replica_does_not_go_round_another_pools_token(store: RevisionStore) -> None:
    """A pool that asks for a token shares no replica with one that does not."""
    made = Finding(store)
    key = '{"keys": [{"kty": "oct", "k": "AA"}]}'
    guarded = pool("safe", endpoints=[], endpoints_from=[{"file": "/s"}], jwt={"any_of": ["p"]})
    spec = pool(endpoints=[], endpoints_from=[{"file": "/f"}], default=True)
    provider = {"name": "p", "issuer": "i", "jwks": key}
    await made.start(fleet(guarded, spec, listener={"jwt": [provider]}))
    made.sources["file /s"].found(answer(1))
    made.sources[FILE].found(answer(1, 2))
    await made.step()
    pools = {each.name: [e.id for e in each.endpoints] for each in made.world.control.fleet.pools}
    assert pools == {"safe": ["r1"], "llm": ["r2"]}
    await made.stop()
