"""Entries applied to the router."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.blame.evidence import Attempt, Ended
from ext_proc.blame.origins import client_number
from ext_proc.feedback.entries import AttemptEntry
from ext_proc.feedback.fold import EARLY, FOREIGN, UNKNOWN
from ext_proc.routing.router import Router
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.routing.values.ticket import Outcome
from support.log_entries import R1, R2, address, entry, made


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
def test_what_clients_do_ejects_no_replica(changes):
    """Clients' bad requests, malformed bodies and disconnects eject no replica, in any number."""
    router, feedback = made()
    for _ in range(100):
        feedback.take(entry(**changes), 1.0)
    assert not list(router.conditions.counts())


@pytest.mark.parametrize(
    ("changes", "answers"),
    [
        ({}, 1),
        ({"status": 500}, 0),
        ({"answer_bytes": 0}, 0),
        ({"answered": False, "status": 0, "first_byte_s": None}, 0),
        ({"attempts": 2}, 0),
    ],
)
def test_an_answer_that_its_client_left_tells_when_it_began(changes, answers):
    """OpenAI's client closes the connection at ``[DONE]``, often before the answer's last bytes."""
    router, feedback = made()
    feedback.take(entry(ended=Ended.LEFT, first_at_s=0.1, **changes), 1.0)
    replica = router.registry.members[R1]
    assert replica.served["llm"].describe()["answers"] == answers


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
        ({"ticket": ""}, FOREIGN),
        ({"ticket": "x-"}, "good"),
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
    assert router.registry.in_flight()[router.registry.at("llm", other).id] == 1
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


def test_a_call_that_is_no_inference_teaches_no_time():
    """Clients ask for readiness and metadata before each request; such picks are not charged."""
    router, feedback = made()
    assert feedback.take(entry(ticket="x-", first_at_s=0.001, first_byte_s=0.001), 1.0) == "good"
    assert estimates(router) == (None, None, 0)
    assert router.conditions.of("llm", R1) == []


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
    assert router.index.table.matched((1, 2), other) == 2


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
def test_work_that_no_client_waits_for_is_charged(changes):
    """Triton computes a unary inference to its end, even if the client has left."""
    router, feedback = made()
    infer(router)
    feedback.take(entry(delivered_at_s=0.0, **changes), 2.0)
    assert router.ledger.load(R1).in_flight == 1
    router.registry.sweep(90.0)
    assert router.ledger.load(R1).in_flight == 0


@pytest.mark.parametrize(
    ("form", "changes"),
    [
        (Form.GENERATE_STREAM, {"ended": Ended.LEFT, "answered": False, "status": 0}),
        (Form.GENERATE, {"ended": Ended.LEFT}),
        (Form.GENERATE, {"ended": Ended.LEFT, "answered": False, "status": 0, "read": False}),
        (Form.GENERATE, {"ended": Ended.LEFT, "answered": False, "delivered_at_s": None}),
        (Form.GENERATE, {"ended": Ended.TIMEOUT, "answered": False, "delivered_at_s": None}),
        (Form.GENERATE, {"ended": Ended.BROKEN, "answered": False, "status": 503}),
        (Form.GENERATE, {}),
    ],
)
def test_work_that_ended_or_stops_is_not_charged(form, changes):
    """Streams stop, answers are the work's end, and what was not read whole never began."""
    router, feedback = made()
    infer(router, form)
    feedback.take(entry(**{"delivered_at_s": 0.0, **changes}), 2.0)
    assert router.ledger.load(R1).in_flight == 0


def test_the_time_of_an_upload_is_no_time_of_work():
    """The charge lasts as long as the replica had the whole request: 2 of 50 s."""
    router, feedback = made()
    infer(router)
    left = entry(ended=Ended.LEFT, answered=False, status=0, lasted_s=50.0, delivered_at_s=48.0)
    feedback.take(left, 60.0)
    router.registry.sweep(61.9)
    assert router.ledger.load(R1).in_flight == 1
    router.registry.sweep(62.0)
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
    left = entry(ended=Ended.LEFT, answered=False, status=0, lasted_s=50.0, delivered_at_s=0.0)
    feedback.take(left, 60.0)
    for second in range(60, 100):
        router.registry.sweep(float(second))
    assert router.ledger.load(R1).in_flight == 1
    assert router.conditions.of("llm", R1) == []


def test_a_running_request_stands_once_its_client_has_sent_it():
    """Until a byte of an answer comes, or it ends; an upload never does."""
    router, feedback = made()
    standing = router.conditions.standing
    request = Request("llm", None, "http", Features(Form.GENERATE, model="m"), client="a")
    ticket = router.decide(request, 0.0, 0.0).ticket
    running = {"ticket": f"x-{ticket.id}", "final": False, "answer_bytes": 0, "lasted_s": 3.0}
    feedback.take(entry(**running), 3.0)
    assert not standing
    for change in ({"answer_bytes": 1}, {"final": True}):
        feedback.take(entry(**running, delivered_at_s=1.0), 3.0)
        ((key, (one,)),) = standing.by_replica(3.0).items()
        assert (key.id, one.since, one.client) == ("r1", 1.0, client_number("a"))
        feedback.take(entry(**{**running, **change}, delivered_at_s=1.0), 4.0)
        assert not standing


def test_of_what_stands_on_a_hung_replica_only_what_has_no_headers_may_leave():
    """Whoever has the headers of an answer cannot get another one."""
    router, feedback = made()
    conditions = router.conditions
    conditions.probed("llm", R1, ready=False)
    running = {"final": False, "answer_bytes": 0, "delivered_at_s": 0.0}
    for now in map(float, range(1, 60)):
        for ticket, status in (("x-1", 0), ("x-2", 200)):
            feedback.take(entry(ticket=ticket, status=status, lasted_s=now, **running), now)
        conditions.alive(R2, now)
        conditions.sweep({R1: 2, R2: 1}, now)
        found = feedback.hung(now)
        if conditions.frozen:
            break
    assert [each.ticket_id for each in found] == [1]


@pytest.mark.parametrize(
    "shows_nothing",
    [
        {"status": 400},
        {"status": 404},
        {"status": 500, "unreadable": True},
        {"status": 0, "answered": False, "answer_bytes": 0, "ended": Ended.LEFT},
    ],
)
def test_what_shows_nothing_makes_room_for_the_next_try_of_a_half_open_replica(shows_nothing):
    """It neither closes it nor keeps it from being tried."""
    router, feedback = made()
    ejection = router.conditions.ejections["llm"]
    for _ in range(3):
        ejection.bad(R1, 0.0, answered=False)
    assert ejection.barred(1.0) == {R1}
    assert not ejection.barred(20.0)
    for now in (20.0, 21.0, 22.0):
        ejection.picked(R1, now)
        assert ejection.barred(now) == {R1}
        feedback.take(entry(ticket="x-5", **shows_nothing), now)
        assert not ejection.barred(now)
        assert router.conditions.of("llm", R1) == ["ejected"]
    for _ in range(2):
        feedback.take(entry(ticket="x-5"), 23.0)
    assert router.conditions.of("llm", R1) == []
