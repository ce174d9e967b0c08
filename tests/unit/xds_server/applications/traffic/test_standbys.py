"""Standbys come in when a variant lacks usable replicas, and go back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xds_server.applications.traffic.standbys import StandbyMachine, VariantSight

KEY = ("llm", "stable")
WELL = VariantSight(0.5, 1.0, 60.0, 4, 4, ("s1", "s2", "s3"))


class Bench:
    """A machine with one variant, and its clock."""

    def __init__(self, *came: str) -> None:
        self.now = 0.0
        self.machine = StandbyMachine({KEY: came} if came else {})

    def step(
        self, usable: int = 4, after: float = 0.0, *, known: bool = True, **more: object
    ) -> tuple[str, ...]:
        """Return the standbys that are in after some seconds."""
        self.now += after
        sight = WELL._replace(usable=usable, **more)
        return self.machine.step(self.now, {KEY: sight}, known=known).get(KEY, ())


def test_they_stay_out_while_enough_is_usable() -> None:
    """At the share itself, too."""
    bench = Bench()
    assert [bench.step(usable) for usable in (4, 3, 2)] == [(), (), ()]


def test_as_many_come_in_as_are_missing() -> None:
    """They make up the whole again, as far as there are any."""
    assert Bench().step(1) == ("s1", "s2", "s3")
    assert Bench().step(1, until=0.5) == ("s1",)
    assert Bench().step(0) == ("s1", "s2", "s3")


def test_none_comes_in_at_zero() -> None:
    """Then only operators promote."""
    assert Bench().step(0, below=0.0) == ()


def test_a_standby_that_is_ill_is_no_help() -> None:
    """Neither one that is in already: another one comes."""
    assert Bench().step(1, until=0.5, ill=frozenset({"s1"})) == ("s2",)
    bench = Bench()
    assert bench.step(1, until=0.5) == ("s1",)
    assert bench.step(1, until=0.5, ill=frozenset({"s1"})) == ("s1", "s2")


def test_they_go_back_after_a_while_without_a_break() -> None:
    """A variant that recovers for a moment does not send them back and forth."""
    bench = Bench()
    came = bench.step(1)
    assert bench.step(4) == came
    assert bench.step(3, after=59) == came
    assert bench.step(4, after=10) == came
    assert bench.step(4, after=59.9) == came
    assert bench.step(4, after=0.1) == ()


def test_unknown_is_no_reason() -> None:
    """After a restart of the control server all look usable until pickers report."""
    bench = Bench("s1")
    assert bench.step(4) == ("s1",)
    assert bench.step(4, after=59, known=False) == ("s1",)
    assert bench.step(4, after=59) == ("s1",)
    assert bench.step(4, after=59) == ("s1",)
    assert bench.step(4, after=1) == ()
    assert bench.step(0, known=False) == ()


def test_what_is_no_standby_any_more_is_forgotten() -> None:
    """It was promoted for good, drained or removed; so was a variant."""
    bench = Bench("s1", "s2")
    assert bench.step(2, standbys=("s2",)) == ("s2",)
    assert bench.machine.step(9.0, {}, known=True) == {}
    assert (bench.machine._in, bench.machine._well_since) == ({}, {})


def test_a_variant_of_standbys_alone_is_left_as_it_is() -> None:
    """There is no share of nothing."""
    assert Bench().step(0, replicas=0) == ()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sets(st.sampled_from(["s1", "s2", "s3"])),
            st.booleans(),
            st.floats(0, 100),
        ),
        max_size=20,
    ),
    st.sampled_from([0.0, 0.25, 0.5, 0.75]),
    st.sampled_from([0.75, 1.0]),
)
def test_whatever_happens(
    steps: list[tuple[int, set[str], bool, float]], below: float, until: float
) -> None:
    """With a free healthy standby no known step ends below the share; none comes in above it."""
    machine, now, before = StandbyMachine({}), 0.0, set[str]()
    for usable, ill, known, passed in steps:
        now += passed
        sight = WELL._replace(below=below, until=until, usable=usable, ill=frozenset(ill))
        came = set(machine.step(now, {KEY: sight}, known=known).get(KEY, ()))
        serving = usable + len(came - ill)
        free = set(sight.standbys) - came - ill
        if known:
            assert serving >= below * 4 or not free
            if usable + len(before - ill) >= below * 4:
                assert came <= before
            if before and not came:
                assert usable >= until * 4
        else:
            assert came == before
        before = came
