"""Ejection: which replicas of a pool are ejected, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.routing.health.breakers import MAX_EJECTION_S
from ext_proc.routing.health.ejection import COMPARE_S, MIN_LATENCIES, Ejection
from ext_proc.routing.health.ejection_record import Cause, Phase
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.settings import Outlier

RULES = Outlier(consecutive_failures=3, base_ejection_s=10.0, frozen_after_s=30.0)


def key(number: int) -> EndpointKey:
    return EndpointKey(f"r{number}", 1)


class Case:
    """An ejection over some replicas, and the ejections that it reported."""

    def __init__(self, build, count: int = 4, rules: Outlier = RULES) -> None:
        self.reported: list[tuple[EndpointKey, Cause]] = []
        self.ejection = Ejection(lambda one, cause: self.reported.append((one, cause)))
        self.ejection.set_pool(build.pool(count, outlier=rules))

    def fail(self, number: int, times: int = 3, now: float = 0.0, *, answered: bool = False):
        for _ in range(times):
            self.ejection.bad(key(number), now, answered=answered)

    def phase(self, number: int) -> Phase:
        return self.ejection.phase(key(number))


def test_failures_in_a_row_eject_and_a_good_answer_between_them_does_not(build):
    """Two failures, a success, two failures do not eject; three in a row do."""
    case = Case(build)
    for _ in range(2):
        case.fail(0, 2)
        case.ejection.good(key(0), 0.1, 0.0)
    assert not case.ejection
    case.fail(0, 3)
    assert case.ejection.barred(1.0) == {key(0)}
    assert case.reported == [(key(0), Cause.FAILURES)]


def test_good_answers_reported_together_count_each(build):
    """Each of them counts in the failure share and in the half-open phase."""
    case = Case(build, rules=Outlier(consecutive_failures=99, failure_percent=50))
    for now in range(8):
        case.fail(0, 2, float(now))
        case.ejection.good(key(0), 0.1, float(now), 4)
    assert not case.ejection
    case.fail(0, 40, 10.0)
    assert case.reported == [(key(0), Cause.RATIO)]
    case.ejection.barred(1e3)
    case.ejection.good(key(0), 0.1, 1e3, 2)
    assert case.phase(0) is Phase.CLOSED


def test_answers_that_are_all_errors_name_a_dead_backend(build):
    """A replica that answers only with errors is ejected as a dead backend."""
    case = Case(build)
    case.fail(0, answered=True)
    assert case.reported == [(key(0), Cause.DEAD_BACKEND)]


def test_the_way_back(build):
    """An ejected replica is half open, with one request at a time, until two good answers."""
    case = Case(build)
    case.fail(0)
    assert case.ejection.barred(9.9) == {key(0)}
    assert case.ejection.barred(10.0) == set()
    case.ejection.picked(key(0), 10.0)
    assert case.ejection.barred(10.1) == {key(0)}
    case.ejection.good(key(0), 0.1, 10.2)
    assert case.ejection.barred(10.2) == set()
    assert case.phase(0) is Phase.HALF_OPEN
    case.ejection.good(key(0), 0.1, 10.3)
    assert case.phase(0) is Phase.CLOSED
    assert not case.ejection


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


def test_a_share_of_failures_ejects_once_there_are_enough(build):
    """A replica that fails often, but never three times in a row, is ejected by its share."""
    case = Case(build)
    for number in range(30):
        for peer in (1, 2, 3):
            case.ejection.good(key(peer), 0.1, number * 0.1)
        case.ejection.good(key(0), 0.1, number * 0.1)
        case.fail(0, 1 + number % 2, number * 0.1)
    assert case.reported[0] == (key(0), Cause.RATIO)


def test_slow_first_bytes_eject_where_a_factor_is_set(build):
    """A replica ten times slower than its peers is ejected, but not without a factor."""
    for factor, expected in ((5.0, [(key(0), Cause.SLOW)]), (0.0, [])):
        case = Case(build, rules=Outlier(latency_factor=factor))
        for _ in range(MIN_LATENCIES + 8):
            for number in range(4):
                case.ejection.good(key(number), 1.0 if number == 0 else 0.1, 0.0)
        assert case.reported == expected


def test_work_in_flight_without_progress_is_frozen(build):
    """Thirty seconds without progress while peers progress eject; progress half-opens at once."""
    case = Case(build)
    for second in range(29):
        case.ejection.alive(key(1), second)
        case.ejection.sweep({key(0): 1, key(1): 1}, second)
    assert not case.reported
    case.ejection.alive(key(1), 30.0)
    case.ejection.sweep({key(0): 1, key(1): 1}, 30.0)
    assert case.reported == [(key(0), Cause.FROZEN)]
    case.ejection.alive(key(0), 31.0)
    assert case.phase(0) is Phase.HALF_OPEN


def test_when_no_replica_makes_progress_none_is_frozen(build):
    """Long answers without a byte in between look the same on all replicas."""
    case = Case(build)
    for second in range(0, 100, 5):
        case.ejection.sweep({key(number): 1 for number in range(4)}, float(second))
    assert not case.reported


def test_a_frozen_replica_is_found_although_all_clients_wait_for_it(build):
    """Its peers made progress after it stopped, and then became idle."""
    case = Case(build)
    case.ejection.sweep({key(0): 1}, 0.0)
    case.ejection.alive(key(1), 7.0)
    for second in range(1, 40):
        case.ejection.sweep({key(0): 4}, float(second))
    assert case.reported == [(key(0), Cause.FROZEN)]


def test_replicas_that_stop_together_are_not_frozen(build):
    """In an outage one replica is the last to stop; this does not eject the first."""
    case = Case(build)
    case.ejection.sweep({key(number): 1 for number in range(4)}, 0.0)
    for number in range(4):
        case.ejection.alive(key(number), 1.0 + number)
    for second in range(5, 100, 5):
        case.ejection.sweep({key(number): 1 for number in range(4)}, float(second))
    assert not case.reported


def test_an_idle_replica_is_never_frozen(build):
    """A replica without continuous work in flight is not frozen."""
    case = Case(build)
    for second in range(0, 100, 5):
        case.ejection.alive(key(1), second)
        case.ejection.sweep({key(0): second % 2}, float(second))
    assert not case.reported


def test_removed_and_restarted_replicas_are_reset(build):
    """A restarted or removed replica has no record of its earlier failures."""
    case = Case(build)
    case.fail(0)
    case.ejection.set_pool(build.pool(4, outlier=RULES))
    assert case.ejection.barred(1.0) == {key(0)}
    case.ejection.forget(key(0))
    assert not case.ejection
    case.fail(1)
    case.ejection.set_pool(build.pool(1, outlier=RULES))
    assert not case.ejection
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


# --- Failures that a request may have caused -----------------------------------------------------


class Callers(Case):
    """Answers to callers, one each 0.1 s."""

    def __init__(self, build, count: int = 4, rules: Outlier = RULES) -> None:
        super().__init__(build, count, rules)
        self.now = 0.0

    def bad(self, number: int, origin: int) -> None:
        self.now += 0.1
        self.ejection.bad(key(number), self.now, answered=True, origin=origin)

    def good(self, number: int, origin: int = 0) -> None:
        self.now += 0.1
        self.ejection.good(key(number), 0.1, self.now)
        if origin:
            self.ejection.well(key(number), origin, self.now)


def test_failures_of_one_origin_never_eject(build):
    """Two hundred of them, with peers that answer others."""
    case = Callers(build)
    for _ in range(200):
        case.bad(0, 7)
        case.good(1)
        case.good(2)
    assert not case.reported


def test_failures_of_several_origins_eject(build):
    """Three, and more once the log can hold no good answers back, if peers answered meanwhile."""
    case = Callers(build)
    for origin in (7, 8, 9, 10):
        assert not case.reported
        case.bad(0, origin)
        case.good(1)
    case.bad(0, 11)
    assert case.reported == [(key(0), Cause.DEAD_BACKEND)]


def test_two_origins_eject_once_they_failed_often_enough(build):
    """They need not be as many as the failures that are needed."""
    case = Callers(build)
    case.bad(0, 7)
    case.good(1)
    case.bad(0, 8)
    assert not case.reported
    case.bad(0, 7)
    case.now += 0.3
    case.bad(0, 8)
    assert case.reported == [(key(0), Cause.DEAD_BACKEND)]


def test_without_results_of_peers_nobody_is_ejected(build):
    """All callers may ask for what no replica can do."""
    case = Callers(build)
    for origin in range(7, 100):
        case.bad(0, origin)
    assert not case.reported


def test_failures_among_good_answers_eject_nobody(build):
    """Bursts of several callers' failures between answers to others, on the same replica."""
    case = Callers(build)
    for turn in range(300):
        for number in range(4):
            case.good(number)
        for origin in range(3):
            case.ejection.bad(key(0), case.now, answered=True, origin=10 + 3 * turn + origin)
    assert not [cause for _, cause in case.reported if cause is not Cause.RATIO]


def test_one_batch_of_failures_ejects_nobody(build):
    """After a pause, one worker of the proxy may write failures before another writes answers."""
    case = Callers(build)
    for turn in range(20):
        case.now += 3.0
        for origin in range(5 if turn else 12):
            case.ejection.good(key(1), 0.1, case.now)
            case.ejection.bad(key(0), case.now, answered=True, origin=10 + 20 * turn + origin)
        for _ in range(40):
            case.ejection.good(key(0), 0.1, case.now + 0.2)
    assert not case.reported


def test_a_pause_is_no_time_without_good_answers(build):
    """The last results before it were failures, and so are the first ones after it."""
    case = Callers(build)
    for turn in range(20):
        for number in range(4):
            case.good(number)
        case.bad(0, 10 + 3 * turn)
        case.now += 10.0
        case.good(1)
        for origin in (11, 12):
            case.ejection.bad(key(0), case.now, answered=True, origin=3 * turn + origin)
    assert not case.reported


def test_a_replica_that_gave_good_answers_is_ejected_when_it_gives_none(build):
    """Twenty a second before; none for the time of five, and longer than the log's delay."""
    case = Callers(build)
    for turn in range(1000):
        case.ejection.good(key(turn % 4), 0.1, turn / 80)
    now, failed = 1000 / 80, 0
    while not case.reported:
        now, failed = now + 1 / 20, failed + 1
        case.ejection.good(key(1), 0.1, now)
        case.ejection.bad(key(0), now, answered=True, origin=10 + failed)
    assert failed <= 9


def test_an_origin_that_is_answered_well_elsewhere_convicts(build):
    """With one origin only, this is the evidence."""
    case = Callers(build)
    for _ in range(3):
        case.bad(0, 7)
    assert case.ejection.avoided(7, case.now) == key(0)
    case.good(1, origin=8)
    case.now += 0.3
    assert not case.reported
    case.good(1, origin=7)
    assert case.reported == [(key(0), Cause.DEAD_BACKEND)]


def test_a_good_answer_elsewhere_convicts_nobody_that_answers_others(build):
    """Else a caller could send three bad requests, then a good one."""
    case = Callers(build)
    for _ in range(60):
        for number in range(4):
            case.good(number)
        for _ in range(3):
            case.ejection.bad(key(0), case.now, answered=True, origin=10)
        case.ejection.well(key(1), 10, case.now)
    assert not case.reported


def test_one_origin_does_not_keep_a_replica_out(build):
    """In the half-open phase others decide as well."""
    case = Callers(build)
    case.fail(0)
    assert case.ejection.barred(10.0) == set()
    case.ejection.picked(key(0), 10.0)
    for turn in range(5):
        case.ejection.bad(key(0), 10.0 + turn, answered=True, origin=7)
        assert case.ejection.barred(10.0 + turn) == set(), "the next request is let through"
    for _ in range(2):
        case.ejection.good(key(0), 0.1, 15.0)
    assert case.phase(0) is Phase.CLOSED


def test_two_origins_send_a_half_open_replica_back(build):
    """A broken backend fails whoever asks."""
    case = Callers(build)
    case.fail(0)
    case.ejection.barred(10.0)
    case.ejection.bad(key(0), 10.0, answered=True, origin=7)
    assert case.phase(0) is Phase.HALF_OPEN
    case.ejection.bad(key(0), 10.1, answered=True, origin=8)
    assert case.phase(0) is Phase.EJECTED


def test_attempts_cut_by_our_bound_show_a_frozen_replica_although_nothing_is_in_flight(build):
    """The requests have moved on, so the ledger shows no work there."""
    case = Case(build)
    for second in range(40):
        case.ejection.alive(key(1), float(second))
        if second % 3 == 2:
            case.ejection.kept_waiting(key(0), 2.0, float(second))
        case.ejection.sweep({}, float(second))
    assert case.reported == [(key(0), Cause.FROZEN)]


def test_attempts_cut_by_our_bound_are_no_failures(build):
    """A replica with signs of life is never frozen, however many honest long prompts it has."""
    case = Case(build)
    for second in range(100):
        for number in range(4):
            case.ejection.alive(key(number), float(second))
        for _ in range(20):
            case.ejection.kept_waiting(key(0), 0.9, float(second) + 0.95)
        case.ejection.sweep({}, float(second))
    assert not case.reported


def test_a_frozen_replica_that_keeps_waiting_again_goes_back(build):
    """Only while it is half open as a frozen one."""
    case = Case(build)
    for second in range(31):
        case.ejection.alive(key(1), float(second))
        case.ejection.sweep({key(0): 1}, float(second))
    assert case.phase(0) is Phase.EJECTED
    case.ejection.barred(50.0)
    assert case.phase(0) is Phase.HALF_OPEN
    case.ejection.kept_waiting(key(0), 5.0, 55.0)
    assert case.phase(0) is Phase.EJECTED
