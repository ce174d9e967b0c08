"""Ejection: which replicas of a pool are ejected, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.health.ejection import COMPARE_S, MAX_EJECTION_S, MIN_LATENCIES, Ejection
from ext_proc.routing.health.ejection_record import Cause, Phase
from ext_proc.routing.values.settings import Outlier
from support.ejections import RULES, Case, key


def test_failures_in_a_row_eject_and_a_good_answer_between_them_does_not(build):
    """Two failures, a success, two failures do not eject; three in a row do."""
    case = Case(build)
    for _ in range(2):
        case.fail(0, 2)
        case.ejection.good(key(0), 0.1, 0.0)
    assert not case.ejection.out
    case.fail(0, 3)
    assert case.ejection.barred(1.0) == {key(0)}
    assert case.reported == [(key(0), Cause.FAILURES)]


def test_good_answers_reported_together_count_each(build):
    """Each of them counts in the failure share and in the half-open phase."""
    case = Case(build, rules=Outlier(consecutive_failures=99, failure_percent=50))
    for now in range(8):
        case.fail(0, 2, float(now))
        case.ejection.good(key(0), 0.1, float(now), 4)
    assert not case.ejection.out
    case.fail(0, 40, 10.0)
    assert case.reported == [(key(0), Cause.RATIO)]
    case.ejection.barred(1e3)
    case.ejection.good(key(0), 0.1, 1e3, 2)
    assert case.phase(0) is Phase.CLOSED


def test_a_half_open_request_without_a_result_is_given_up(build):
    """After the base time another request is let through."""
    case = Case(build)
    case.fail(0)
    case.ejection.barred(10.0)
    case.ejection.picked(key(0), 10.0)
    assert case.ejection.barred(19.9) == {key(0)}
    assert case.ejection.barred(20.0) == set()


def test_each_relapse_doubles_the_time_up_to_a_bound(build):
    """One bad answer in the half-open phase ejects for 10, 20, 40 ... seconds."""
    case = Case(build)
    case.fail(0)
    now, spans = 0.0, []
    for _ in range(8):
        begun = now
        while case.ejection.barred(now):
            now += 1.0
        spans.append(now - begun)
        case.fail(0, 1, now)
    assert spans == [10, 20, 40, 80, 160, *[MAX_EJECTION_S] * 3]


def test_a_long_good_time_resets_the_doubling(build):
    """After being closed for twice its last ejection, a replica starts at the base time."""
    case = Case(build)
    for start in (0.0, 100.0):
        case.fail(0, now=start)
        case.ejection.barred(start + 10.0)
        for _ in range(2):
            case.ejection.good(key(0), 0.1, start + 10.0)
    case.fail(0, now=115.0)
    assert case.ejection.barred(125.1) == {key(0)}
    assert case.ejection.barred(135.0) == set()


def test_results_that_arrive_during_the_ejection_change_nothing(build):
    """They belong to requests from before the ejection."""
    case = Case(build)
    case.fail(0)
    case.fail(0, 5, 1.0)
    case.ejection.good(key(0), 0.1, 1.0)
    assert case.ejection.barred(5.0) == {key(0)}
    assert case.ejection.barred(10.0) == set()
    assert len(case.reported) == 1


def test_failures_that_peers_have_too_eject_no_replica(build):
    """A client that sends invalid requests to all replicas causes no ejection."""
    case = Case(build)
    for _ in range(20):
        for number in range(4):
            case.fail(number, 1, answered=True)
    assert len(case.reported) <= 2, "the first ones cannot know"
    late = Case(build)
    for number in (1, 2, 3):
        late.fail(number, 2)
    late.fail(0, 9)
    assert not late.reported


def test_two_of_four_may_fail_together(build):
    """The median of the peers counts, so one bad peer does not prevent an ejection."""
    case = Case(build)
    for number in (2, 3):
        case.ejection.good(key(number), 0.1, 0.0)
    for _ in range(3):
        case.fail(0, 1)
        case.fail(1, 1)
    assert case.ejection.barred(1.0) == {key(0), key(1)}


def test_the_share_ejected_is_bounded(build):
    """At most half of four, one of two or three, none of one, and none if the share is 0."""
    for count, percent, most in ((4, 50, 2), (3, 10, 1), (2, 100, 1), (1, 100, 0), (4, 0, 0)):
        case = Case(build, count, Outlier(max_ejection_percent=percent))
        for number in range(count):
            case.fail(number)
        assert len(case.ejection.barred(1.0)) == most, (count, percent)


def test_slow_first_bytes_eject_where_a_factor_is_set(build):
    """A replica ten times slower than its peers is ejected, but not without a factor."""
    for factor, expected in ((5.0, [(key(0), Cause.SLOW)]), (0.0, [])):
        case = Case(build, rules=Outlier(latency_factor=factor))
        for _ in range(MIN_LATENCIES + 8):
            for number in range(4):
                case.ejection.good(key(number), 1.0 if number == 0 else 0.1, 0.0)
        assert case.reported == expected


def test_removed_and_restarted_replicas_are_reset(build):
    """A restarted or removed replica has no record of its earlier failures."""
    case = Case(build)
    case.fail(0)
    case.ejection.set_pool(build.pool(4, outlier=RULES))
    assert case.ejection.barred(1.0) == {key(0)}
    case.ejection.forget(key(0))
    assert not case.ejection.out
    case.fail(1)
    case.ejection.set_pool(build.pool(1, outlier=RULES))
    assert not case.ejection.out
    assert case.ejection.describe(key(1), 1.0) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["good", "refused", "error", "alive", "sweep", "pick", "wait"]),
            st.integers(0, 4),
        ),
        max_size=200,
    ),
    st.integers(0, 100),
)
def test_after_any_events_the_share_holds_and_every_ejection_ends(build, events, percent):
    """Never more replicas than allowed are ejected, never all, and each ejection ends in time."""
    case = Case(
        build, 5, Outlier(max_ejection_percent=percent, frozen_after_s=5.0, latency_factor=2.0)
    )
    now = 0.0
    for event, number in events:
        now += 0.5
        if event == "good":
            case.ejection.good(key(number), 0.1 * (1 + number), now)
        elif event == "alive":
            case.ejection.alive(key(number), now)
        elif event == "sweep":
            case.ejection.sweep({key(number): 1}, now)
        elif event == "pick":
            case.ejection.picked(key(number), now)
        elif event == "wait":
            now += 10.0
        else:
            case.fail(number, 1, now, answered=event == "error")
        out = sum(case.phase(one) is not Phase.CLOSED for one in range(5))
        assert out <= min(4, max(5 * percent // 100, 1 if percent else 0))
        assert len(case.ejection.barred(now)) <= out
    assert case.ejection.barred(now + MAX_EJECTION_S) == set()


def test_an_outage_of_all_does_not_cost_a_comparison_each_time(build, monkeypatch):
    """After a comparison that found the peers affected, there is none for the next 10 ms."""
    case = Case(build)
    compared = []
    look = Ejection._peers
    monkeypatch.setattr(
        Ejection, "_peers", lambda self, *one: (compared.append(one), look(self, *one))[1]
    )
    for number in (1, 2, 3):
        case.fail(number, 2)
    case.fail(0, 50)
    assert len(compared) == 1
    case.fail(0, 1, COMPARE_S)
    assert len(compared) == 2
    assert not case.reported
