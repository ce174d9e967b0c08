"""The fleet that is published: what is written, with what is found in place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.members.members import MAX_LEFT_OUT, Member, Members, found_ids
from xds_server.fleet.members.origins import origins_of
from xds_server.fleet.members.stored import dump, load
from xds_server.fleet.model.fleet import Fleet

FILE = "file /f"
SOURCE = {"file": "/f"}


def finding(name: str = "llm", **more: Any) -> dict[str, Any]:
    """Return a pool that finds."""
    given = {"endpoints": [], "endpoints_from": [SOURCE], "variants": [{"name": "stable"}]}
    return pool(name, **{**given, **more})


def member(number: int, incarnation: int = 0, **fields: Any) -> Member:
    """Return a member, ``fN`` at an address of its own."""
    (origin,) = origins_of(fleet(finding()).pools[0]).values()
    given = {
        "identity": f"f{number}",
        "http": f"10.0.0.{number}:8000",
        "grpc": f"10.0.0.{number}:8001",
        **fields,
    }
    spec = origin.replica(given.pop("identity"), given.pop("http"), given.pop("grpc"), **given)
    return Member(spec, FILE, spec.id, incarnation or number, 7)


def published(written: Fleet, **pools: tuple[Member, ...]) -> dict[str, list[str]]:
    """Return the ids of each pool."""
    whole = Members(pools).published(written).fleet
    return {each.name: [e.id for e in each.endpoints] for each in whole.pools}


def test_a_fleet_that_finds_nothing_is_itself() -> None:
    """Members of pools that are not there change nothing."""
    written = fleet(pool())
    assert Members({"gone": (member(1),)}).published(written).fleet is written


def test_written_replicas_go_first_and_names_are_only_found() -> None:
    """With the incarnations of the members."""
    written = fleet(finding(endpoints=[endpoint(1), {"id": "n", "http": "t.example:80"}]))
    members = Members({"llm": (member(5, 50), member(6, 60))})
    found = members.published(written)
    assert [e.id for e in found.fleet.pools[0].endpoints] == ["r1", "f5", "f6"]
    assert found.incarnations == {"f5": (50, 7), "f6": (60, 7)}
    assert found_ids(found.fleet) == {"llm": frozenset({"f5", "f6"})}
    assert members.published(written) is found, "the same fleet costs nothing again"


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        ({"http": "224.0.0.1:80"}, "impossible to connect"),
        ({"grpc": "0.0.0.0:81"}, "impossible to connect"),
        ({"http": "127.0.0.1:10000"}, "Envoy's own address"),
        ({"grpc": "10.9.9.9:18001"}, "is a picker's"),
        ({"variant": "other"}, "no variant 'other'"),
        ({"http": "127.0.0.1:8010"}, "belongs to 'r1'"),
        ({"identity": "r1"}, "belongs to 'r1'"),
    ],
)
def test_what_would_break_a_rule_is_left_out(of: dict[str, str], reason: str) -> None:
    """With the reason, its source and its id; the others are published."""
    written = fleet(finding(endpoints=[endpoint(1)]), pickers={"addresses": ["10.9.9.9:18001"]})
    found = Members({"llm": (member(5, **of), member(6))}).published(written)
    assert [e.id for e in found.fleet.pools[0].endpoints] == ["r1", "f6"]
    (said,) = found.left_out
    assert reason in said
    assert said.startswith("pool llm: ")
    assert FILE in said


def test_reasons_are_bounded() -> None:
    """A source may list thousands that do not fit."""
    many = tuple(member(n % 250 + 1, identity=f"x{n}", variant="other") for n in range(100))
    assert len(Members({"llm": many}).published(fleet(finding())).left_out) == MAX_LEFT_OUT


def test_one_replica_in_two_pools_has_the_addresses_found_last() -> None:
    """Two sources may not be of the same moment."""
    written = fleet(finding(default=True), finding("chat"))
    moved = member(5, 90, http="10.0.1.5:8000", grpc="10.0.1.5:8001")
    found = Members({"llm": (member(5, 50),), "chat": (moved,)}).published(written)
    assert {e.http for each in found.fleet.pools for e in each.endpoints} == {"10.0.1.5:8000"}
    assert found.incarnations == {"f5": (90, 7)}


def test_one_address_in_two_pools_keeps_its_first_id() -> None:
    """Else one machine would have two ledgers."""
    written = fleet(finding(default=True), finding("chat"))
    assert published(written, llm=(member(5),), chat=(member(5, identity="other"),)) == {
        "llm": ["f5"],
        "chat": ["f5"],
    }


def test_drains_are_the_fleet_s_word() -> None:
    """By the id of what was found, or by the endpoint that is written with a name."""
    named = {"id": "n", "http": "t.example:80", "draining": True}
    written = fleet(finding(endpoints=[named], drained=["f5"]))
    (key, *_) = origins_of(written.pools[0])
    spec = member(7).spec
    by_name = Member(spec, key, "n", 9, 0)
    whole = Members({"llm": (member(5), member(6), by_name)}).published(written).fleet
    assert {e.id: e.draining for e in whole.pools[0].endpoints} == {
        "f5": True,
        "f6": False,
        "f7": True,
    }


def test_unchanged_pools_stay_the_same_objects() -> None:
    """Whatever is built of them is not built again."""
    written = fleet(finding(default=True), finding("chat"))
    first = Members({"llm": (member(1),), "chat": (member(2),)}).published(written).fleet
    second = (
        Members({"llm": (member(1), member(3)), "chat": (member(2),)})
        .published(written, first)
        .fleet
    )
    assert second.pools[1] is first.pools[1]
    assert second.pools[0].endpoints[0] is first.pools[0].endpoints[0]


@given(
    st.dictionaries(
        st.sampled_from(["llm", "chat"]),
        st.lists(st.tuples(st.integers(1, 250), st.integers(1, 2**50)), max_size=5),
    )
)
def test_stored_members_are_the_same(groups: dict[str, list[tuple[int, int]]]) -> None:
    """But for holds, which a restart judges anew."""
    members = Members(
        {name: tuple(member(n, born) for n, born in group) for name, group in groups.items()}
    )
    assert load(dump(members)) == members
