"""Entries applied to the router."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.feedback.entries import AttemptEntry, Entry
from ext_proc.feedback.fold import EARLY, FOREIGN, UNKNOWN, Feedback
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome

R1, R2 = EndpointKey("r1", 1), EndpointKey("r2", 1)


def address(number: int) -> str:
    return f"10.0.0.{number}:8000"


def made() -> tuple[Router, Feedback]:
    router = Router(random.Random(1))
    endpoints = tuple(
        Endpoint(EndpointKey(f"r{n}", 1), "stable", http=address(n), grpc=None) for n in (1, 2, 3)
    )
    pool = Pool(name="llm", variants=(Variant("stable", 1),), endpoints=endpoints)
    router.set_pools({"llm": pool}, 0.0)
    return router, Feedback(router, picker="p", life="x-")


def entry(**changes) -> Entry:
    usual = {
        "picker": "p",
        "ticket": "x-1",
        "unreadable": False,
        "cluster": "llm/stable/http",
        "served": address(1),
        "picks": ",".join(address(n) for n in (1, 2, 3)),
        "attempts": 1,
        "status": 200,
        "grpc_status": None,
        "ended": Ended.DONE,
        "read": True,
        "answered": True,
        "final": True,
        "first_byte_s": 0.1,
        "answer_bytes": 10,
        "ended_unix_s": 0.0,
    }
    return Entry(**{**usual, **changes})


def test_a_retry_credits_who_served_and_blames_who_did_not():
    """Three requests picked r1, which does not answer; r2 served them."""
    router, feedback = made()
    for _ in range(3):
        assert feedback.take(entry(attempts=2, served=address(2)), 1.0) == "good"
    assert router.conditions.of("llm", R1) == ["ejected"]
    assert router.conditions.of("llm", R2) == []
    assert feedback.retried == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"status": 400},
        {"status": 404},
        {"status": 500, "unreadable": True},
        {"ended": Ended.LEFT},
        {"ended": Ended.TIMEOUT, "status": 504, "answered": False},
        {"ended": Ended.TRY_TIMEOUT, "status": 504, "answered": False},
    ],
)
def test_what_clients_do_ejects_nobody(changes):
    """Clients' bad requests, malformed bodies and disconnects eject no replica, in any number."""
    router, feedback = made()
    for _ in range(100):
        feedback.take(entry(**changes), 1.0)
    assert not list(router.conditions.counts())


class Traffic:
    """Requests of sessions, and what the log says of them."""

    def __init__(self) -> None:
        self.router, self.feedback = made()
        self.now = 0.0
        self.started = 0

    def sent(self, session: str | None, blocks: tuple[int, ...] = ()) -> str:
        """Decide a request of a session; return its ticket."""
        features = Features(form=Form.GENERATE, model="m", session=session)
        request = Request("llm", None, "http", features, blocks)
        ticket = self.router.decide(request, self.now, 0.0).ticket
        self.router.settle(ticket, Outcome.DONE, self.now)
        return f"x-{ticket.id}"

    def answered(self, session: str | None, number: int, **changes) -> str:
        """Apply the final entry of a request of a session that the replica of a number served."""
        self.now += 0.2
        ticket = self.sent(session)
        return self.feedback.take(entry(ticket=ticket, served=address(number), **changes), self.now)

    def attempted(self, ticket: str, number: int, ended: Ended = Ended.BROKEN, **changes) -> None:
        """Apply the entry of a failed attempt at the replica of a number."""
        usual = {"read": True, "answered": False, "began": False, "status": 0}
        attempt = Attempt(address(number), ended, **{**usual, **changes})
        self.started += 1
        self.feedback.attempted(
            AttemptEntry("p", ticket, "llm/stable/http", attempt, float(self.started), 0.01),
            self.now,
        )

    def conditions(self, key: EndpointKey) -> list[str]:
        return self.router.conditions.of("llm", key)


@pytest.fixture
def traffic() -> Traffic:
    return Traffic()


def test_errors_to_several_callers_eject(traffic):
    """The fourth session's 500 ejects, as peers answer theirs."""
    for number in range(4):
        traffic.answered(f"well-{number}", 2)
        traffic.answered(f"well-{number}", 3)
        assert traffic.conditions(R1) == []
        assert traffic.answered(f"s{number}", 1, status=500) == "error"
    assert traffic.conditions(R1) == ["ejected", "dead-backend"]


@pytest.mark.parametrize("changes", [{"status": 500}, {"status": 503}, {"grpc_status": 13}])
def test_one_callers_errors_eject_nobody(traffic, changes):
    """Two hundred errors of one session, while others are served well everywhere."""
    for turn in range(200):
        traffic.answered("bad", 1 + turn % 3, **changes)
        traffic.answered("good", 1 + turn % 3)
    assert not list(traffic.router.conditions.counts())


def test_one_callers_errors_alone_eject_nobody(traffic):
    """Two hundred errors of one session on one replica, and nothing else is known."""
    for _ in range(200):
        traffic.answered("bad", 1, status=500)
    assert not list(traffic.router.conditions.counts())


def test_a_request_repeated_by_nobody_in_particular_ejects_nobody(traffic):
    """Without session, sequence and prompt its body is its origin, where the picker has read it."""
    for _ in range(50):
        traffic.now += 0.2
        request = Request("llm", None, "http", Features(Form.HTTP_INFER, model="m"), body=b"same")
        ticket = traffic.router.decide(request, traffic.now, 0.0).ticket
        traffic.router.settle(ticket, Outcome.DONE, traffic.now)
        traffic.answered("well", 2)
        failed = entry(ticket=f"x-{ticket.id}", served=address(1), status=500)
        traffic.feedback.take(failed, traffic.now)
    assert not list(traffic.router.conditions.counts())


def test_errors_that_follow_the_callers_everywhere_eject_nobody(traffic):
    """Each of two hundred sessions fails wherever it is sent."""
    for turn in range(200):
        traffic.answered(f"s{turn}", 1 + turn % 3, status=500)
    assert not list(traffic.router.conditions.counts())


def test_a_caller_is_sent_elsewhere_and_its_good_answer_there_convicts(traffic):
    """With one caller only, where it is answered well is the evidence."""
    for _ in range(3):
        traffic.answered("only", 1, status=500)
    features = Features(form=Form.GENERATE, model="m", session="only")
    for _ in range(20):
        decision = traffic.router.decide(Request("llm", None, "http", features), 0.1, 0.0)
        assert decision.addresses[0] != address(1)
    assert traffic.conditions(R1) == []
    for _ in range(2):
        traffic.answered("only", 2)
    assert traffic.conditions(R1) == ["ejected", "dead-backend"]


def test_a_caller_that_fails_elsewhere_too_convicts_nobody(traffic):
    """Its requests are at fault: neither its errors nor its later good answers count."""
    for number in (1, 1, 1, 2, 2, 2):
        traffic.answered("only", number, status=500)
    traffic.answered("only", 3)
    assert not list(traffic.router.conditions.counts())


def test_attempts_say_what_the_order_of_the_picks_cannot(traffic):
    """The first pick was dead, the second had room for one only, the third answered."""
    for session in ("a", "b", "c"):
        ticket = traffic.sent(session)
        traffic.attempted(ticket, 1, Ended.UNREACHED, read=False)
        traffic.attempted(ticket, 2, Ended.LOCAL, read=False)
        entered = entry(ticket=ticket, attempts=3, served=address(3))
        assert traffic.feedback.take(entered, 0.0) == "good"
    assert traffic.feedback.blamed == {
        ("llm", "network"): 3,
        ("llm", "us"): 3,
        ("llm", "none"): 3,
    }
    assert traffic.conditions(R1) == ["ejected"]


def test_a_replica_that_cannot_be_reached_is_judged_at_once(traffic):
    """The request may run for a minute elsewhere before its final entry."""
    for session in ("a", "b", "c"):
        traffic.attempted(traffic.sent(session), 1, Ended.UNREACHED, read=False)
    assert traffic.conditions(R1) == ["ejected"]


def test_a_refused_start_of_a_sequence_leaves_the_lease_to_the_next_replica(traffic):
    """The second request of the sequence may come before the first one's final entry."""
    request = Request("llm", None, "http", Features(Form.GENERATE, model="m", sequence_id=5), ())
    first = traffic.router.decide(request, 0.0, 0.0)
    number = int(first.addresses[0].split(".")[3].partition(":")[0])
    assert first.addresses[0] == address(number)
    traffic.attempted(f"x-{first.ticket.id}", number, Ended.UNREACHED, read=False)
    assert traffic.router.decide(request, 0.0, 0.0).addresses == first.addresses[1:2]


def test_a_request_that_breaks_each_connection_is_blamed_itself(traffic):
    """Too large a header, for instance: no replica is ejected, whoever sends it."""
    for turn in range(50):
        ticket = traffic.sent(f"s{turn}")
        traffic.attempted(ticket, 1)
        traffic.attempted(ticket, 2)
        ended = {"ended": Ended.BROKEN, "answered": False, "status": 503}
        entered = entry(ticket=ticket, attempts=2, served=address(2), **ended)
        assert traffic.feedback.take(entered, 0.0) == "broken"
    assert traffic.feedback.blamed == {("llm", "request"): 100}
    assert not list(traffic.router.conditions.counts())


def test_a_final_entry_and_its_attempt_count_once(traffic):
    """The last attempt, if it failed, writes both."""
    ticket = traffic.sent("s")
    traffic.attempted(ticket, 1, Ended.UNREACHED, read=False)
    ended = {"ended": Ended.UNREACHED, "answered": False, "status": 503}
    assert traffic.feedback.take(entry(ticket=ticket, **ended), 0.0) == "unreached"
    assert traffic.feedback.blamed == {("llm", "network"): 1}


def test_suspected_deaths_are_told_as_they_are_logged(traffic, monkeypatch):
    """Read, and broken off without an answer: by the attempt's entry, or else by the final one."""
    told = []
    monkeypatch.setattr(traffic.router, "died", lambda *what: told.append(what[:2]))
    traffic.attempted("x-1", 1)
    traffic.attempted("x-1", 2, Ended.UNREACHED, read=False)
    traffic.attempted("x-1", 2, Ended.TRY_TIMEOUT)
    assert told == [(R1, 1)]
    ended = {"ended": Ended.BROKEN, "answered": False, "status": 503}
    traffic.feedback.take(entry(ticket="x-2", served=address(2), **ended), 0.0)
    traffic.feedback.take(entry(ticket="x-3", ended=Ended.BROKEN), 0.0)
    assert told == [(R1, 1), (R2, 2)]
    traffic.attempted("x-4", 1)
    traffic.feedback.take(entry(ticket="x-4", **ended), 0.0)
    assert told == [(R1, 1), (R2, 2), (R1, 4)], "once"


def test_the_prompt_is_confirmed_or_rejected(traffic, monkeypatch):
    """By the first byte of an answer below 400, or by the end without one."""
    told = []
    monkeypatch.setattr(traffic.router, "confirmed", lambda number, _: told.append(number))
    monkeypatch.setattr(traffic.router, "rejected", lambda number: told.append(-number))
    gone = {"ended": Ended.LEFT, "answered": False, "status": 0}
    for number, changes in enumerate(
        [{}, {"status": 400}, {"ended": Ended.LEFT}, gone, {"status": 500}, {"served": None}], 1
    ):
        traffic.feedback.take(entry(ticket=f"x-{number}", **changes), 0.0)
    early = {"final": False, "first_at_s": 1.4, "lasted_s": 2.0}
    traffic.feedback.take(entry(ticket="x-7", **early), 0.0)
    traffic.feedback.take(entry(ticket="x-8", status=404, **early), 0.0)
    assert told == [1, -2, 3, -4, -5, -6, 7]


def test_good_answers_of_suspects_are_told(traffic, monkeypatch):
    """Of no other request."""
    told = []
    monkeypatch.setattr(traffic.router, "answered_well", lambda *what: told.append(what[:2]))
    traffic.router.suspects = {2}
    for number in (1, 2):
        traffic.feedback.take(entry(ticket=f"x-{number}"), 0.0)
    assert told == [(2, R1)]


def kept(traffic: Traffic, ticket: int) -> None:
    """Let the router keep a request's body, and a replica die with it."""
    traffic.router.suspicion.open[ticket] = "llm", "m", b"body"
    traffic.attempted(f"x-{ticket}", 1)


def held(traffic: Traffic) -> int:
    return traffic.router.suspicion.deaths.suspects


@pytest.mark.parametrize(
    ("changes", "suspects"),
    [
        ({}, 0),
        ({"status": 404}, 0),
        ({"ended": Ended.LEFT}, 0),
        ({"status": 500}, 1),
        ({"grpc_status": 13}, 1),
        ({"ended": Ended.TRY_TIMEOUT, "status": 504, "answered": False}, 1),
    ],
)
def test_an_answer_below_500_clears_a_suspect(traffic, changes, suspects):
    """The replica survived the request, whatever it thought of it."""
    kept(traffic, 1)
    assert held(traffic) == 1
    served = entry(ticket="x-1", served=address(2), attempts=2, **changes)
    traffic.feedback.take(served, 0.0)
    assert held(traffic) == suspects


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize(("answer_bytes", "suspects"), [(10, 0), (0, 1)])
def test_a_running_answer_clears_a_suspect(traffic, attempts, answer_bytes, suspects):
    """A long generation need not end for that."""
    kept(traffic, 1)
    early = {"final": False, "attempts": attempts, "answer_bytes": answer_bytes}
    traffic.feedback.take(entry(ticket="x-1", **early), 0.0)
    assert held(traffic) == suspects


def test_a_refused_connection_confirms_a_death(traffic):
    """Nothing listens where the connection broke."""
    kept(traffic, 1)
    deaths = traffic.router.suspicion.deaths
    assert [each[3] for each in deaths.kept()] == [False]
    traffic.attempted("x-2", 1, Ended.UNREACHED, read=False)
    assert [each[3] for each in deaths.kept()] == [True]


def test_a_request_that_its_caller_left_may_have_caused_a_death(traffic):
    """So the others on the replica are not the only ones that may have."""
    gone = {"ended": Ended.LEFT, "answered": False, "status": 0}
    traffic.feedback.take(entry(ticket="x-9", **gone), 0.0)
    kept(traffic, 1)
    assert [each[2] for each in traffic.router.suspicion.deaths.kept()] == [True]


def test_attempts_of_others_are_counted_only(traffic):
    """Another picker's, an earlier run's, and one without a ticket."""
    for changes in ({"picker": "q"}, {"ticket": "y-1"}, {"ticket": ""}):
        attempt = Attempt(address(1), Ended.UNREACHED, False, False, False, 0)
        usual = {"picker": "p", "ticket": "x-1"}
        traffic.feedback.attempted(
            AttemptEntry(
                **{**usual, **changes},
                cluster="llm/stable/http",
                attempt=attempt,
                began_unix_s=0.0,
                lasted_s=0.0,
            ),
            0.0,
        )
    assert traffic.feedback.outcomes == {FOREIGN: 3}
    assert not traffic.feedback.blamed


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"picker": "other"}, FOREIGN),
        ({"ticket": "y-1"}, FOREIGN),
        ({"served": "10.9.9.9:1"}, UNKNOWN),
        ({"cluster": "gone/stable/http"}, UNKNOWN),
        ({"cluster": ""}, UNKNOWN),
        ({"served": None}, "local"),
        ({"final": False, "served": None}, EARLY),
        ({"final": False, "ticket": "x-99"}, EARLY),
        ({"final": False, "ticket": "x-no"}, EARLY),
        ({"ticket": ""}, "good"),
    ],
)
def test_entries_that_fit_nothing_are_counted(changes, outcome):
    """Late, foreign and unknown entries change nothing but a counter."""
    router, feedback = made()
    assert feedback.take(entry(status=500 if outcome != "good" else 200, **changes), 1.0) == outcome
    assert feedback.outcomes == {outcome: 1}
    assert not list(router.conditions.counts())


def test_an_intermediate_entry_moves_the_charge_and_settles_nothing():
    """A long retried request is counted at the replica where it runs."""
    router, feedback = made()
    decision = router.decide(
        Request("llm", None, "http", Features(form=Form.GENERATE, model="m")), 0.0, 0.0
    )
    picked = decision.addresses[0]
    other = address(2) if picked != address(2) else address(1)
    early = entry(final=False, ticket=f"x-{decision.ticket.id}", served=other, attempts=2)
    for _ in range(3):
        feedback.take(early, 1.0)
    assert feedback.moved == 1
    assert router.registry.in_flight()[router.at("llm", other).id] == 1
    assert sum(router.registry.in_flight().values()) == 1
    router.settle(decision.ticket, Outcome.DONE, 2.0)
    assert sum(router.registry.in_flight().values()) == 0
    feedback.take(early._replace(final=True), 3.0)
    assert sum(router.registry.in_flight().values()) == 0


@given(
    st.lists(
        st.builds(
            entry,
            ticket=st.sampled_from(["", "x-1", "x-2", "x-", "x-²", "y-1"]),
            cluster=st.sampled_from(["llm/stable/http", "", "/", "no"]),
            served=st.sampled_from([None, address(1), address(2), "?"]),
            picks=st.sampled_from(["", ",", f"{address(1)},{address(2)}"]),
            attempts=st.integers(0, 2**32 - 1),
            status=st.integers(0, 2**32 - 1),
            grpc_status=st.none() | st.integers(0, 20),
            ended=st.sampled_from(Ended),
            read=st.booleans(),
            answered=st.booleans(),
            final=st.booleans(),
            first_byte_s=st.none() | st.floats(0, 1e9),
        ),
        max_size=50,
    )
)
def test_no_entry_breaks_the_fold(entries):
    """Whatever a proxy writes, each entry is counted once and the ledger stays consistent."""
    router, feedback = made()
    for number, each in enumerate(entries):
        feedback.take(each, float(number))
    assert feedback.outcomes.total() == len(entries)
    assert feedback.state()["entries"].keys() == {str(each) for each in feedback.outcomes}
    assert sum(router.registry.in_flight().values()) == 0


def estimates(router, key=R1):
    shown = router.state(0.0)["pools"]["llm"]["endpoints"][key.id]["answers"]
    return shown["first_byte_s"], shown["bytes_per_s"], shown["answers"]


def test_an_answer_teaches_time_and_speed():
    """First byte after 0.1 s, 1000 bytes in the half second that followed."""
    router, feedback = made()
    feedback.take(
        entry(answer_bytes=1000, first_at_s=0.1, last_at_s=0.6, lasted_s=0.6, first_byte_s=0.1), 1.0
    )
    assert estimates(router) == (0.1, 2000, 1)


def test_a_long_request_teaches_its_first_byte_once():
    """The entry after that byte reports it; later entries and the last one repeat it."""
    router, feedback = made()
    long = {"first_at_s": 1.4, "first_byte_s": 1.4, "answer_bytes": 1}
    feedback.take(entry(final=False, first_byte_s=None, lasted_s=1.0, answer_bytes=0), 1.0)
    feedback.take(entry(final=False, lasted_s=2.0, **long), 2.0)
    feedback.take(entry(final=False, lasted_s=3.0, **long), 3.0)
    feedback.take(entry(lasted_s=3.7, last_at_s=3.7, **long), 4.0)
    assert estimates(router) == (1.4, 0, 1)


def test_a_retried_answer_teaches_no_time():
    """Its time includes the attempts at other replicas."""
    router, feedback = made()
    feedback.take(
        entry(attempts=2, served=address(2), first_at_s=0.3, last_at_s=0.31, lasted_s=0.3), 1.0
    )
    assert estimates(router, R2) == (None, None, 0)


def test_failures_teach_nothing():
    """A replica that refuses at once does not count as fast."""
    router, feedback = made()
    feedback.take(entry(status=500, first_at_s=0.001, lasted_s=0.001), 1.0)
    assert estimates(router) == (None, None, 0)


def test_the_prompt_of_a_retried_request_is_who_served_its():
    """The index expects the blocks at that replica once the entry has arrived."""
    router, feedback = made()
    request = Request("llm", None, "http", Features(Form.GENERATE), blocks=(1, 2))
    ticket = router.decide(request, 0.0, 0.0).ticket
    router.settle(ticket, Outcome.DONE, 0.5)
    other = R2 if ticket.endpoint == R1 else R1
    there = address(int(other.id[1:]))
    picks = f"{address(int(ticket.endpoint.id[1:]))},{there}"
    feedback.take(entry(ticket=f"x-{ticket.id}", attempts=2, picks=picks, served=there), 0.6)
    assert router.index.matched((1, 2), other) == 2


@pytest.mark.parametrize("final", [True, False])
def test_the_beginning_of_an_answer_tells_the_speed(final, monkeypatch):
    """The first byte is reported with number and replica, but not that of an error."""
    router, feedback = made()
    reported = []
    monkeypatch.setattr(router.learner, "began", lambda *what: reported.append(what))
    times = {"first_byte_s": 0.4, "first_at_s": 0.5, "lasted_s": 0.9}
    feedback.take(entry(ticket="x-7", final=final, **times), 1.0)
    feedback.take(entry(ticket="x-8", final=final, status=404, **times), 1.0)
    feedback.take(entry(ticket="x-9", final=final, attempts=2, **times), 1.0)
    assert reported == [(7, R1, 0.4)]


def infer(router: Router, form: Form = Form.GENERATE) -> None:
    """Send the first request, and end it for the ledger."""
    decision = router.decide(Request("llm", "stable", "http", Features(form)), 1.0, 1.0)
    router.settle(decision.ticket, Outcome.DONE, 2.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"ended": Ended.LEFT, "answered": False, "status": 0},
        {"ended": Ended.TRY_TIMEOUT, "status": 504, "answered": False},
        {"ended": Ended.TIMEOUT, "status": 504, "answered": False},
    ],
)
def test_work_that_nobody_waits_for_is_charged(changes):
    """Triton computes a unary inference to its end, whoever has left."""
    router, feedback = made()
    infer(router)
    feedback.take(entry(**changes), 2.0)
    assert router.ledger.load(R1).in_flight == 1
    router.registry.sweep(90.0)
    assert router.ledger.load(R1).in_flight == 0


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        (Form.GENERATE_STREAM, {"ended": Ended.LEFT, "answered": False, "status": 0}),
        (Form.GENERATE, {"ended": Ended.LEFT}),
        (Form.GENERATE, {"ended": Ended.LEFT, "answered": False, "status": 0, "read": False}),
        (Form.GENERATE, {"ended": Ended.BROKEN, "answered": False, "status": 503}),
        (Form.GENERATE, {}),
    ],
)
def test_work_that_ended_or_stops_is_not_charged(form, changes):
    """Streams stop, answers are the work's end, and what was not read never began."""
    router, feedback = made()
    infer(router, form)
    feedback.take(entry(**changes), 2.0)
    assert router.ledger.load(R1).in_flight == 0


def test_an_attempt_that_timed_out_is_charged_beside_the_retry():
    """Both replicas work on the request."""
    router, feedback = made()
    decision = router.decide(Request("llm", "stable", "http", Features(Form.GENERATE)), 1.0, 1.0)
    picked = decision.ticket.endpoint
    other = R2 if picked == R1 else R1
    attempt = Attempt(address(int(picked.id[1:])), Ended.TRY_TIMEOUT, True, False, False, 504)
    feedback.attempted(AttemptEntry("p", "x-1", "llm/stable/http", attempt, 1.0, 1.0), 2.0)
    final = entry(attempts=2, served=address(int(other.id[1:])))
    router.settle(decision.ticket, Outcome.DONE, 3.0)
    feedback.take(final, 3.0)
    assert router.ledger.load(picked).in_flight == 1


def test_a_replica_with_abandoned_work_only_is_not_frozen():
    """No answer is expected of it."""
    router, feedback = made()
    infer(router)
    feedback.take(entry(ended=Ended.LEFT, answered=False, status=0, lasted_s=50.0), 60.0)
    for second in range(60, 100):
        router.registry.sweep(float(second))
    assert router.ledger.load(R1).in_flight == 1
    assert router.conditions.of("llm", R1) == []
