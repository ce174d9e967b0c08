"""Suspicion in the router: what is kept of requests, and how suspects are routed."""

from __future__ import annotations

import pytest

from ext_proc.blame.deaths import DEATH_S
from ext_proc.routing import suspicion as module
from ext_proc.routing.suspicion import SUSPICION_EVENTS, SuspectBody
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.refusal import RefusalKind
from ext_proc.routing.values.ticket import Outcome
from support.deadly import is_repeatable
from support.routing import decide, end, refuse

BODY = b"a body"
LATER = 10.0
DONE = LATER + DEATH_S


def asked(build, body=BODY, **changes):
    return build.request(**changes).changed(body=body)


def send(router, build, body=BODY, now=0.0, **changes):
    """Send a request; return its decision."""
    return decide(router, asked(build, body, **changes), now)


def kept(router, decision):
    """Return the body that is kept of a request without a verdict."""
    return router.suspicion.open[decision.ticket.id][2]


def die(router, decision, replica, at):
    """Let a replica die with a request."""
    router.suspicion.died(decision.ticket.id, replica, at)
    router.suspicion.gone(replica, at)


def back(router, *replicas):
    """Note that replicas answered something after their deaths."""
    for replica in replicas or ("r0", "r1"):
        router.suspicion.deaths.alive(replica, DONE)


def replica_of(decision):
    return decision.ticket.endpoint.id


@pytest.fixture
def members(build):
    """Return a router in whose first two replicas two requests died, 10 s apart."""
    router = build.router(build.pool(4))
    for body in (BODY, b"another"):
        decision = send(router, build, body)
        die(router, decision, "r0", 0.0)
        die(router, decision, "r1", LATER)
        end(router, decision)
    back(router)
    return router


def test_no_body_is_hashed_before_a_replica_dies(build, monkeypatch):
    """All other requests cost two references."""
    router = build.router(build.pool())
    monkeypatch.setattr(router.suspicion, "_fingerprints", None)
    decision = send(router, build)
    assert list(router.suspicion.open) == [decision.ticket.id]
    router.suspicion.answered(decision.ticket.id, decision.ticket.endpoint.id, 1.0)
    assert not router.suspicion.open


def test_of_a_request_without_a_whole_body_its_client_is_kept(build):
    """It has no fingerprint; without a client nothing is known of it."""
    router = build.router(build.pool())
    send(router, build, None)
    assert not router.suspicion.open
    decision = decide(router, asked(build, None).changed(client="caller"))
    assert router.suspicion.open == {decision.ticket.id: ("llm", "m", None, "caller")}


def test_a_kept_body_that_is_pushed_out_leaves_its_fingerprint_while_it_runs(build, monkeypatch):
    """Long requests stay suspects, however much passes by."""
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    router = build.router(build.pool())
    monkeypatch.setattr(router.suspicion, "_left", 10)
    runs, ended, last = (send(router, build, bytes([n]) * 5) for n in range(3))
    end(router, ended)
    assert kept(router, runs) is None
    another = send(router, build, bytes(5))
    assert ended.ticket.id not in router.suspicion.open
    assert kept(router, last) == bytes([2]) * 5
    assert kept(router, another) == bytes(5)


def test_a_body_larger_than_the_bound_is_hashed_at_once(build, monkeypatch):
    """It is as dangerous as a small one."""
    router = build.router(build.pool())
    monkeypatch.setattr(router.suspicion, "_left", 10)
    decision = send(router, build, bytes(11))
    assert kept(router, decision) is None
    assert router.suspicion._left == 10


def test_the_number_of_kept_requests_is_bounded(build, monkeypatch):
    """Without a log nothing is ever answered."""
    monkeypatch.setattr(module, "MAX_OPEN", 8)
    router = build.router(build.pool())
    decisions = [send(router, build) for _ in range(40)]
    assert len(router.suspicion.open) == 16
    for decision in decisions:
        die(router, decision, "r0", 0.0)
        send(router, build)
        assert len(router.suspicion.open) <= 16


def test_the_request_to_blame_is_refused_and_no_other(build):
    """Killed twice, alone: the third copy gets no replica."""
    router = build.router(build.pool(4))
    decision = send(router, build)
    die(router, decision, "r0", 0.0)
    die(router, decision, "r1", LATER)
    assert refuse(router, asked(build), DONE).kind is RefusalKind.DEADLY_REQUEST
    send(router, build, b"another", DONE)
    send(router, build, None, DONE)
    waits = refuse(router, asked(build, model="other"), DONE)
    assert waits.kind is RefusalKind.SUSPECT_WAITS  # the same body
    (found,) = router.suspicion.sweep(DONE)
    assert found.replicas == ("r0", "r1")
    assert router.state(DONE)["deaths"]["refused"]


def test_a_member_is_sent_once_and_alone(build, members):
    """A replica that runs a member gets no other; the proxy must not repeat it."""
    first = send(members, build, now=DONE)
    assert not is_repeatable(first)
    for _ in range(20):
        assert refuse(members, asked(build), DONE).kind is RefusalKind.SUSPECT_WAITS
    second = send(members, build, b"another", DONE)
    assert second.ticket.endpoint != first.ticket.endpoint


def test_a_member_runs_beside_requests_that_are_not_suspected(build, members):
    """They are not in the way: they were on none of the dead replicas."""
    send(members, build, now=DONE)
    assert {send(members, build, b"%d" % n, DONE).ticket.endpoint.id for n in range(40)} == {
        "r0",
        "r1",
        "r2",
        "r3",
    }


def test_a_member_waits_where_each_replica_runs_one(build):
    """503 with Retry-After, within a moment its turn comes."""
    router = build.router(build.pool(2))
    for body in (b"first", b"another", b"one more"):
        decision = send(router, build, body)
        die(router, decision, "r0", 0.0)
        die(router, decision, "r1", LATER)
        end(router, decision)
    back(router)
    first = send(router, build, b"first", DONE)
    send(router, build, b"another", DONE)
    assert refuse(router, asked(build, b"one more"), DONE).kind is RefusalKind.SUSPECT_WAITS
    router.settle(first.ticket, Outcome.DONE, DONE)
    assert send(router, build, b"one more", DONE).ticket.endpoint == first.ticket.endpoint


def test_an_answer_clears_a_member(build, members):
    """It is routed as any other request then."""
    decision = send(members, build, now=DONE)
    members.suspicion.answered(decision.ticket.id, decision.ticket.endpoint.id, DONE)
    end(members, decision)
    assert is_repeatable(send(members, build, now=DONE))


def test_a_body_that_was_answered_lately_is_no_suspect(build):
    """A load test's only body is on each replica that an operator kills."""
    router = build.router(build.pool(4))
    answered = send(router, build)
    router.suspicion.answered(answered.ticket.id, answered.ticket.endpoint.id, 0.0)
    decision = send(router, build)
    die(router, decision, "r0", 0.0)
    die(router, decision, "r1", LATER)
    assert is_repeatable(send(router, build, now=DONE))


@pytest.mark.parametrize("careful", ["suspect", "sequence", "cut"])
def test_a_half_open_replica_gets_what_can_be_repeated_and_is_not_suspected(build, careful):
    """It may still be broken, and then the request is lost, or it breaks again."""
    router = build.router(build.pool(2))
    for _ in range(3):
        router.conditions.bad("llm", EndpointKey("r0", 1), 1.0, answered=False)
    assert router.conditions.of("llm", EndpointKey("r0", 1)) == ["ejected"]
    request = asked(build, sequence_id=7 if careful == "sequence" else None)
    request.repeatable = careful != "cut"
    if careful == "suspect":
        die(router, send(router, build, now=1.0), "r1", 14.0)
    half_open = 15.0
    for number in range(10):
        again = request.changed()
        if careful == "sequence":
            again.features = asked(build, sequence_id=number).features
        assert decide(router, again, half_open).ticket.endpoint.id == "r1"
    tried = {send(router, build, b"%d" % n, half_open).ticket.endpoint.id for n in range(10)}
    assert "r0" in tried


def test_another_seed_forgets_what_was_kept(build):
    """Fingerprints of two seeds cannot be compared."""
    router = build.router(build.pool())
    die(router, send(router, build), "r0", 0.0)
    router.set_pools({"llm": build.pool(seed=5)}, 1.0)
    assert (router.suspicion.deaths.active, router.suspicion.open) == (False, {})


def test_workers_suspect_and_clear_alike(build):
    """Each sees half of the log, and both refuse, wait and clear the same."""
    one, two = (build.router(build.pool(4), on_event=lambda _: None) for _ in range(2))
    for sender, number, receiver in ((one, 1, two), (two, 2, one)):
        sender.suspicion._on_event = lambda event, to=receiver, by=number: (
            to.peers.follow(by, event, 0.0) if isinstance(event, SUSPICION_EVENTS) else None
        )
    first, second = send(one, build), send(two, build, b"another")
    for replica, at in (("r0", 0.0), ("r1", LATER)):
        die(one, first, replica, at)
        die(two, second, replica, at)
    back(one)
    back(two)
    running = send(one, build, now=DONE)
    assert refuse(two, asked(build), DONE).kind is RefusalKind.SUSPECT_WAITS
    held = asked(build, b"another")
    other = decide(two, held, DONE)
    assert held.care.avoid == {running.ticket.endpoint.id}
    one.peers.lost(2)
    assert send(one, build, b"another", DONE)
    one.suspicion.answered(running.ticket.id, running.ticket.endpoint.id, DONE)
    assert is_repeatable(send(two, build, now=DONE))
    two.settle(other.ticket, Outcome.DONE, DONE)


def test_workers_tell_each_other_of_replicas_that_are_gone_and_callers_that_left(build):
    """Each sees a part of the log."""
    one, two = (build.router(build.pool(4)) for _ in range(2))
    one.suspicion._on_event = lambda event: two.peers.follow(1, event, 0.0)
    one.suspicion.gone("r0", 5.0)
    one.suspicion.left("r1", 6.0)
    assert two.suspicion.deaths.gone_at("r0") == 5.0
    assert two.suspicion.deaths.left_at("r1") == 6.0


def test_a_worker_that_starts_learns_what_is_held(build, members):
    """Its share of the requests would kill one more replica otherwise."""
    members.suspicion.left("r1", LATER)
    running = send(members, build, now=DONE)
    started = build.router(build.pool(4))
    for event in members.peers.suspicions():
        started.peers.follow(1, event, DONE)
    back(started)
    deaths = list(started.suspicion.deaths.kept())
    assert [each[:4] for each in deaths] == [("r0", 0.0, False, True), ("r1", LATER, True, True)]
    assert refuse(started, asked(build), DONE).kind is RefusalKind.SUSPECT_WAITS
    assert (
        running.ticket.endpoint.id
        not in decide(started, asked(build, b"another"), DONE).addresses[0]
    )


def test_answered_bodies_are_bounded_by_number_and_bytes(build, monkeypatch):
    """The oldest are dropped at either bound, and all of them when a replica dies."""
    monkeypatch.setattr(module, "ANSWERED", 4)
    router = build.router(build.pool())
    kept = router.suspicion._answered

    def answer(body):
        decision = send(router, build, body)
        router.suspicion.answered(decision.ticket.id, decision.ticket.endpoint.id, 0.0)
        end(router, decision)

    for number in range(6):
        answer(b"%d" % number)
    assert [body for _, _, body, _ in kept] == [b"2", b"3", b"4", b"5"]
    for letter in (b"a", b"b", b"c"):
        answer(letter * module.MAX_ANSWERED_BYTES)
    assert [body[:1] for _, _, body, _ in kept] == [b"b", b"c"]
    answer(b"d" * (module.MAX_ANSWERED_BYTES + 1))
    assert len(kept) == 2
    die(router, send(router, build), "r0", 0.0)
    assert not kept


# --- Kinds and callers --------------------------------------------------------------------------

KILLER = b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1099511627776],"data":[0.5]}]}'
NEAR = KILLER.replace(b"0.5", b"0.6")
FAR = b'{"inputs":[{"name":"another","datatype":"INT32","shape":[1048576,1048576],"data":[7,8]}]}'


def besieged(build, client=None, before="others", **changes):
    """Return a router of whose four replicas two died with ``KILLER``, and are back.

    A client sends other requests before, one a second.
    """
    router = build.router(build.pool(4, **changes))
    for second in range(8):
        asks = asked(build, b"%d" % second * 50).changed(client=before)
        end(router, decide(router, asks, second - 8.0))
    decision = decide(router, asked(build, KILLER).changed(client=client))
    die(router, decision, "r0", 0.0)
    die(router, decision, "r1", LATER)
    back(router)
    return router


def test_a_near_copy_runs_only_where_its_like_killed(build):
    """One at a time, at one address, so that the proxy has no other to fall back to."""
    router = besieged(build)
    first = send(router, build, NEAR, DONE)
    assert replica_of(first) in {"r0", "r1"}
    assert not first.retriable
    second = send(router, build, KILLER.replace(b"0.5", b"0.7"), DONE)
    assert {replica_of(first), replica_of(second)} == {"r0", "r1"}
    waits = refuse(router, asked(build, KILLER.replace(b"0.5", b"0.8")), DONE)
    assert waits.kind is RefusalKind.SUSPECT_WAITS
    assert {replica_of(send(router, build, FAR + b"%d" % n, DONE)) for n in range(40)} >= {
        "r2",
        "r3",
    }
    assert router.suspicion.confined == 3


def test_a_near_copy_is_decided_by_what_other_workers_know(build):
    """They may have sent one more death, which confines it."""

    def read() -> None:
        if len(router.suspicion.deaths.describe(DONE)["deaths"]) == 1:
            die(router, decision, "r1", LATER)
            back(router)

    router = build.router(build.pool(4), on_sequence=read)
    for second in range(8):
        end(router, send(router, build, b"%d" % second * 50, second - 8.0))
    decision = send(router, build, KILLER)
    die(router, decision, "r0", 0.0)
    near = send(router, build, NEAR, DONE)
    assert replica_of(near) in {"r0", "r1"}
    assert router.suspicion.confined == 1


def test_a_near_copy_that_was_answered_is_free(build):
    """The next copy of it runs anywhere; other near copies do not."""
    router = besieged(build)
    first = send(router, build, NEAR, DONE)
    router.suspicion.answered(first.ticket.id, first.ticket.endpoint.id, DONE)
    end(router, first)
    again = send(router, build, NEAR, DONE)
    assert again.retriable
    assert not send(router, build, KILLER.replace(b"0.5", b"0.7"), DONE).retriable


@pytest.mark.parametrize("body", [FAR, None])
def test_the_killers_caller_is_confined_and_no_other(build, body):
    """Whatever it sends, read or not."""
    router = besieged(build, client="caller")
    theirs = asked(build, body).changed(client="caller")
    assert replica_of(decide(router, theirs, DONE)) in {"r0", "r1"}
    again = asked(build, body).changed(client="caller")
    assert refuse(router, again, DONE).kind is RefusalKind.SUSPECT_WAITS
    for client in (None, "other"):
        others = asked(build, body).changed(client=client)
        assert decide(router, others, DONE).retriable


def test_a_caller_that_sends_most_of_the_requests_is_not_confined(build):
    """Nobody else would be protected by that."""
    router = besieged(build, client="caller", before="caller")
    assert decide(router, asked(build, FAR).changed(client="caller"), DONE).retriable
    waits = asked(build, NEAR).changed(client="caller")
    assert not decide(router, waits, DONE).retriable


def test_a_kind_that_most_requests_are_of_is_not_confined(build):
    """All requests of a model may differ by a few digits only."""
    router = build.router(build.pool(4))
    for second in range(20):
        body = KILLER.replace(b"0.5", b"%02d." % second)
        end(router, send(router, build, body, float(second) - 20.0))
    decision = send(router, build, KILLER)
    die(router, decision, "r0", 0.0)
    die(router, decision, "r1", LATER)
    assert send(router, build, NEAR, DONE).retriable


def test_a_pool_that_refuses_nothing_confines_nothing(build):
    """`refuse_deadly: false` leaves the bound on reads."""
    router = besieged(build, client="caller", refuse_deadly=False)
    assert not router.suspicion.open
    assert decide(router, asked(build, None).changed(client="caller"), DONE).retriable
    assert decide(router, asked(build, FAR).changed(client="caller"), DONE).retriable


def test_workers_know_near_copies_of_each_other(build):
    """The variant comes to a worker that has not seen the killer; a third one starts later."""
    one, two, started = (build.router(build.pool(4)) for _ in range(3))
    for worker in (one, two, started):
        for second in range(8):
            asks = asked(build, b"%d" % second * 50).changed(client="others")
            end(worker, decide(worker, asks, second - 8.0))
    one.suspicion._on_event = lambda event: two.peers.follow(1, event, 0.0)
    decision = decide(one, asked(build, KILLER).changed(client="caller"))
    die(one, decision, "r0", 0.0)
    die(one, decision, "r1", LATER)
    for event in one.peers.suspicions():
        started.peers.follow(1, event, LATER)
    for worker in (two, started):
        assert refuse(worker, asked(build, NEAR), DONE).kind is RefusalKind.SUSPECT_WAITS
        theirs = asked(build, FAR).changed(client="caller")
        assert refuse(worker, theirs, DONE).kind is RefusalKind.SUSPECT_WAITS
        back(worker)
        assert replica_of(send(worker, build, NEAR, DONE)) in {"r0", "r1"}


def test_a_worker_that_knows_no_other_caller_confines_none(build):
    """It has decided on nothing yet: the killer's caller may be the only one there is."""
    one, two = (build.router(build.pool(4)) for _ in range(2))
    one.suspicion._on_event = lambda event: two.peers.follow(1, event, 0.0)
    decision = decide(one, asked(build, KILLER).changed(client="caller"))
    die(one, decision, "r0", 0.0)
    die(one, decision, "r1", LATER)
    assert decide(two, asked(build, FAR).changed(client="caller"), DONE).retriable
    assert refuse(two, asked(build, NEAR), DONE).kind is RefusalKind.SUSPECT_WAITS


def test_bodies_sent_to_workers_are_bounded(build, monkeypatch):
    """A replica may die with hundreds of long bodies."""
    told = []
    router = build.router(build.pool(4), on_event=told.append)
    monkeypatch.setattr(router.suspicion, "_told_left", 150)
    for number in range(3):
        die(router, send(router, build, b"%d" % number * 100), "r0", 0.0)
    assert len([each for each in told if isinstance(each, SuspectBody)]) == 1
    assert len(router.suspicion.alike) == 3
