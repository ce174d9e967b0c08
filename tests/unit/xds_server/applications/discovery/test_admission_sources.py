"""Admission when the sources of a pool change, end or overlap."""

from __future__ import annotations

from support.admissions import DNS, Bench, found, listed, spec
from xds_server.applications.discovery.admission import LINGER_S, WINDOW_S
from xds_server.applications.discovery.values import Found, Observation
from xds_server.fleet.model.fleet import PoolSpec


def test_a_silent_source_changes_nothing_after_a_restart():
    """The members of before stay until their source has answered."""
    first = Bench(spec(dns=True))
    first.see(listed(1, 2))
    first.see(listed(7), origin=DNS)
    second = Bench(spec(dns=True), first.admission.members)
    assert second.settle(3600) == dict.fromkeys(("r1", "r2", "r7"), "active")
    assert second.see(listed(1))["r2"] == "draining"
    assert second.admission.members[0] == first.admission.members[0]


def test_what_a_removed_source_had_found_leaves():
    """An operator removed it, so nothing is held."""
    bench = Bench(spec(dns=True))
    bench.see(listed(1))
    bench.see(listed(7, 8, 9), origin=DNS)
    bench.admission.configure(spec())
    assert bench.settle() == {"r1": "active", **dict.fromkeys(("r7", "r8", "r9"), "draining")}


def other(*, silent: bool = False, **membership: object) -> PoolSpec:
    """Return the pool with another file in place of the first and, if silent, a name."""
    sources: list[dict[str, object]] = [{"file": "/other"}]
    if silent:
        sources.append({"dns": {"name": "t.example", "http": 8000, "grpc": 8001}})
    changed = spec(**membership).model_dump() | {"endpoints_from": sources}
    return PoolSpec.model_validate(changed)


def test_what_a_removed_source_had_found_stays_until_others_have_joined():
    """A rollback to other sources does not empty the pool, nor leave all work to the first."""
    bench = Bench(spec(admit="ready"))
    bench.see(listed(1, 2, 3))
    bench.admission.configure(other(admit="ready"))
    before = dict.fromkeys(("r1", "r2", "r3"), "active")
    assert bench.settle(1) == before
    assert bench.see(listed(5, 6), origin="file /other") == before
    for origin, identity, waiting in list(bench.admission.waiting()):
        bench.admission.probed(origin, identity, waiting, ready=True)
    assert bench.settle() == {**dict.fromkeys(before, "draining"), "r5": "active", "r6": "active"}
    assert bench.settle(LINGER_S) == {"r5": "active", "r6": "active"}


def test_what_waits_in_a_new_source_does_not_keep_the_old_ones_for_long():
    """One dead entry is no reason; the last of a variant stay, and are shown as held."""
    bench = Bench(spec(admit="ready"))
    bench.see(listed(1, 2))
    bench.admission.configure(other(admit="ready"))
    bench.see(listed(5, 6), origin="file /other")
    assert bench.settle(WINDOW_S) == {"r1": "held", "r2": "held"}
    ((origin, identity, waiting), _) = bench.admission.waiting()
    bench.admission.probed(origin, identity, waiting, ready=True)
    assert bench.settle() == {"r1": "draining", "r2": "draining", "r5": "active"}
    assert bench.admission.hold is None


def test_a_new_source_that_is_silent_keeps_what_the_old_one_found():
    """It is shown as held after a while, and a confirmation lets it go."""
    bench = Bench(spec())
    bench.see(listed(1, 2))
    bench.admission.configure(other(silent=True))
    bench.see(listed(5), origin="file /other")
    assert bench.settle() == dict.fromkeys(("r1", "r2", "r5"), "active")
    assert bench.admission.next_at == bench.now + WINDOW_S
    assert bench.settle(WINDOW_S) == {"r1": "held", "r2": "held", "r5": "active"}
    assert bench.admission.next_at is None
    assert bench.admission.hold is not None
    assert bench.admission.hold.until is None
    assert bench.admission.confirm() == 2
    assert bench.settle() == {"r1": "draining", "r2": "draining", "r5": "active"}


def test_a_source_that_was_there_before_does_not_keep_what_another_had_found():
    """An edit that removes a source takes effect, whether or not the others answer."""
    first = Bench(spec(dns=True))
    first.see(listed(1, 2))
    first.see(listed(7), origin=DNS)
    second = Bench(spec(dns=True), first.admission.members)
    second.settle()
    second.admission.configure(spec())
    assert second.settle() == {"r1": "active", "r2": "active", "r7": "draining"}


def test_a_new_source_of_the_same_replicas_takes_them_over():
    """A file that was moved changes nothing for clients."""
    bench = Bench(spec())
    bench.see(listed(1, 2))
    before = {each.spec.id: each.incarnation for each in bench.admission.members}
    bench.admission.configure(other())
    assert bench.see(listed(1, 2), origin="file /other") == {"r1": "active", "r2": "active"}
    assert {each.spec.id: each.incarnation for each in bench.admission.members} == before
    assert {each.origin for each in bench.admission.members} == {"file /other"}


def test_what_was_found_for_a_variant_that_ends_leaves_at_once():
    """No route leads there any more."""
    bench = Bench(spec())
    bench.see(Observation((found(1), found(2, variant="canary"))))
    ended = other().model_dump() | {"variants": [{"name": "stable"}]}
    bench.admission.configure(PoolSpec.model_validate(ended))
    assert bench.settle() == {"r1": "active", "r2": "draining"}


def test_two_sources_may_list_one_replica():
    """It is one member, and goes with the second of them."""
    bench = Bench(spec(dns=True))
    one = Found("10.0.0.5:8001", "10.0.0.5:8000", "10.0.0.5:8001")
    rest = listed(1, 2).endpoints
    bench.see(Observation((one, *rest)))
    assert len(bench.see(Observation((one,)), origin=DNS)) == 3
    bench.see(Observation(rest), after=1)
    assert bench.settle()["10.0.0.5:8001"] == "active"
