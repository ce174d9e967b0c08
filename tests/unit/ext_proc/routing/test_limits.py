"""Limits of requests in flight: where they come from, and what counts against them."""

from __future__ import annotations

from typing import Any

import pytest

from ext_proc.routing.limits import MAX_NAMES, Limit
from ext_proc.routing.peers import Share
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.queue.waiting import QueuedRequest
from ext_proc.routing.router import Router
from ext_proc.routing.state.candidates import BURST_S, CALM_S
from ext_proc.routing.state.slots import KEPT, MANY, SAME_S, STANDS_S, Slots
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.refusal import Refusal
from ext_proc.routing.values.request import GRPC_STREAM, Features, Form, Request
from ext_proc.routing.values.ticket import Outcome
from support.crew import POOL, key, pool, router

AUTO = {"limit": "auto", "models": frozenset({"m"})}
TWO = {"limit": "auto", "models": frozenset({"m", "n"})}


def full(at: float, running: float, waiting: float = 1.0, **more: Any) -> Reading:
    """Return a reading of an engine in which requests wait."""
    return Reading(at, "m", running=running, queued=waiting, **more)


def told(made: Router, model: str = "m") -> Limit | None:
    return made.limits.limit(made.pools[POOL], key(0), model)


def room(made: Router, model: str = "m") -> int | None:
    state = made.registry.pool_states[POOL]
    candidate = state.candidate(key(0), "http")
    assert candidate is not None
    return made.limits.room(state.pool, candidate, model)


def send(made: Router, model: str = "m", form: Form = Form.GENERATE):
    """Send a request; return its ticket."""
    decision = made.decide(Request(POOL, None, "http", Features(form, model=model)), 0.0, 0.0)
    return decision.ticket


def test_a_declared_batch_waits_in_the_engine():
    """An instance that gets free finds a whole batch; more than all slots are no batch."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [full(1.0, 9.0, slots=8.0, batch=4.0)])
    assert told(made) == Limit(12, "declared")
    made.registry.observe("r0", [full(2.0, 9.0, slots=8.0, batch=64.0)])
    assert told(made) == Limit(16, "declared")


def test_a_limit_that_is_too_low_is_followed_upwards():
    """More that run than were known, with none that waits, have room for a quarter more."""
    made = router(1, more=AUTO)
    for at in (1.0, 2.0, 3.0):
        made.registry.observe("r0", [full(at, 8.0)])
    made.registry.observe("r0", [full(3.5, 8.0, waiting=0.0)])
    assert told(made) == Limit(9, "observed")
    made.registry.observe("r0", [full(4.0, 9.0, waiting=0.0)])
    assert told(made) == Limit(12, "observed")


@pytest.mark.parametrize(("models", "learns"), [({"a", "b"}, False), (set(), True)])
def test_requests_for_unlisted_models_bound_no_listed_ones(models, learns):
    """Else a client could set a replica's limit with names that it makes up."""
    made = router(1, more={**AUTO, "models": frozenset(models)})
    made.limits.answered(key(0), "", 60, 1.0)
    assert (made.limits.known(key(0), "a") is not None) is learns


def test_a_queue_that_stands_shows_the_slots():
    """However many readings: steps that are full of prompts let requests wait for moments."""
    made = router(1, more=AUTO)
    for at in range(8):
        made.registry.observe("r0", [full(1.0 + STANDS_S * at / 8, 7.0 + at % 2)])
        assert told(made) is None
    made.registry.observe("r0", [full(1.0 + STANDS_S, 8.0)])
    assert told(made) == Limit(9, "observed")


def test_a_count_that_stays_shows_the_slots_sooner():
    """A step that is full of prompts soon runs more, or fewer."""
    made = router(1, more=AUTO)
    for at in (1.0, 1.0 + SAME_S / 2):
        made.registry.observe("r0", [full(at, 8.0)])
        assert told(made) is None
    made.registry.observe("r0", [full(1.0 + SAME_S, 8.0)])
    assert told(made) == Limit(9, "observed")


@pytest.mark.parametrize(
    ("begun", "kv_used", "known"), [(0.0, 0.9, False), (1.0, 0.1, False), (1.0, 0.9, True)]
)
def test_what_waits_for_a_long_prompt_shows_no_slots(begun: float, kv_used: float, known: bool):
    """Where first tokens are counted, one must have come, and the cache be half full."""
    made = router(1, more=AUTO)
    for number in range(9):
        at, running = 1.0 + STANDS_S * number / 8, 7.0 + number % 2
        reading = full(at, running, first_tokens=begun * number, kv_used=kv_used)
        made.registry.observe("r0", [reading])
    assert (told(made) is not None) == known


def test_a_count_that_stays_while_no_answer_begins_shows_no_slots():
    """The engine has taken no other request since, however many it could run."""
    made = router(1, more=AUTO)
    for at in (1.0, 1.0 + SAME_S):
        made.registry.observe("r0", [full(at, 8.0, first_tokens=5.0)])
        assert told(made) is None
    made.registry.observe("r0", [full(1.1 + SAME_S, 8.0, first_tokens=6.0)])
    assert told(made) == Limit(9, "observed")


def test_many_that_wait_show_the_slots_of_an_empty_cache():
    """A flood of short prompts stands before a batch that is not full yet."""
    made = router(1, more=AUTO)
    for number in range(9):
        at, running = 1.0 + STANDS_S * number / 8, 7.0 + number % 2
        reading = full(at, running, MANY * 8.0, first_tokens=float(number), kv_used=0.1)
        made.registry.observe("r0", [reading])
    assert told(made) is not None


@pytest.mark.parametrize(
    "last",
    [
        full(2.5, 8.0),  # the same reading, merged with another source's
        full(5.0, 8.0),  # a stale one lies between
        full(3.5, 8.0, waiting=0.0),
        full(3.5, 8.0, waiting=3.0, deferred=3.0),  # they wait for an adapter, not for room
        full(3.5, 0.0),
        Reading(3.5, "m", queued=2.0),
    ],
)
def test_what_does_not_stand_is_not_observed(last: Reading):
    """Readings that are old, equal, without a queue for room or without a count teach nothing."""
    made = router(1, more=AUTO)
    for each in (full(1.0, 7.0), full(2.5, 8.0), last):
        made.registry.observe("r0", [each])
    assert told(made) is None


def test_observed_slots_follow_the_engine():
    """The highest of the latest readings counts: a cache of long prompts runs fewer."""
    made = router(1, more=AUTO)
    at = 0.0
    for running in [*[16.0] * 10, 12.0, *[8.0] * KEPT]:
        at += 0.25
        made.registry.observe("r0", [full(at, running)])
    assert told(made) == Limit(9, "observed")
    made.registry.observe("r0", [full(at + 0.25, 20.0, waiting=0.0)])
    assert told(made) == Limit(26, "observed"), "more run than were thought to"


def test_the_pool_s_own_limit_overrides_all():
    """``per_endpoint_in_flight`` wins, also where the pool has ``limit: none``."""
    made = router(1, more={**AUTO, "limit": "none", "per_endpoint_in_flight": 7})
    made.registry.observe("r0", [full(1.0, 8.0, slots=2.0)])
    assert told(made) == Limit(7, "set")
    assert room(made) == 7


def test_none_is_no_limit():
    """With ``limit: none`` the slots are known, and no limit."""
    made = router(1, more={**AUTO, "limit": "none"})
    made.registry.observe("r0", [full(1.0, 8.0, slots=2.0)])
    assert (told(made), room(made)) == (None, None)
    assert made.limits.known(key(0), "m") == (2, "declared", 1, 1.0)


def test_room_counts_requests_until_they_end():
    """Requests take room, and give it back when they settle; a stream takes none."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [Reading(1.0, "m", "1", slots=2.0)])
    assert room(made) == 3
    ticket = send(made)
    send(made, form=GRPC_STREAM)
    assert room(made) == 2
    made.settle(ticket, Outcome.DONE, 1.0)
    assert room(made) == 3


@pytest.mark.parametrize(("slots", "filled"), [(1, 2), (2, 2), (4, 4)])
@pytest.mark.parametrize("models", [AUTO, TWO])
def test_the_last_place_is_not_for_the_second_band(slots: int, filled: int, models: dict[str, Any]):
    """It fills the slots; one more goes to the first band, unless some of the second wait."""
    made = router(1, more=models)
    made.registry.observe(key(0).id, (Reading(1.0, "m", slots=float(slots)),))

    def ask(priority: int | None) -> Decision | Refusal:
        features = Features(Form.GENERATE, model="m", priority=priority)
        return made.decide(Request(POOL, None, "http", features), 1.0, 1.0)

    for _ in range(filled):
        assert isinstance(ask(2), Decision)
    assert isinstance(ask(2), Refusal)
    assert made.explain(
        Request(POOL, None, "http", Features(Form.GENERATE, model="m", priority=2)), 1.0, 1.0
    )["refused"]
    if slots > 1:
        features = Features(Form.GENERATE, model="m", priority=2)
        request = Request(POOL, None, "http", features)
        waiting = QueuedRequest(request, 1, 1.0, None, 10.0, lambda _: None)
        assert made.wait(waiting, 1.0, 1.0) is None
        assert isinstance(ask(None), Refusal)
        made.queue.leave(waiting)
        assert isinstance(ask(None), Decision)
    assert isinstance(ask(None), Refusal)


@pytest.mark.parametrize(("priority", "name"), [(None, "r0"), (2, "r1")])
def test_a_holder_may_exceed_its_limit_while_others_wait(priority: int | None, name: str):
    """To compute a long prompt elsewhere delays those that wait too; not before the second band."""
    made = router(2, more={**AUTO, "hold_s": 10.0})
    for each in (0, 1):
        made.registry.observe(key(each).id, (Reading(1.0, "m", slots=2.0),))

    def ask(blocks: tuple[int, ...], priority: int | None = None, *, only: bool = False) -> Request:
        prompt = bytes(300 * len(blocks))
        features = Features(Form.GENERATE, model="m", prompt=prompt, priority=priority)
        address = made.pools[POOL].endpoints[0].http
        subset = frozenset({address}) if only and address else None
        return Request(POOL, None, "http", features, blocks, subset=subset)

    long = tuple(range(300))
    for blocks in (long, (500,), (501,), (502,)):
        made.decide(ask(blocks, only=True), 1.0, 1.0)
    now = 1.0 + BURST_S
    waiting = QueuedRequest(ask((503,), priority, only=True), 1, now, None, 10.0, lambda _: None)
    assert made.wait(waiting, now, now) is None
    decision = made.decide(ask(long), now, now)
    assert isinstance(decision, Decision)
    assert decision.ticket is not None
    assert decision.ticket.endpoint.id == name


@pytest.mark.parametrize(
    ("lasts_s", "calm_s", "goes"),
    [
        (0.9 * BURST_S, 0.1, True),
        (BURST_S, 0.9 * CALM_S, False),
        (BURST_S, CALM_S, True),
    ],
)
def test_a_burst_may_exceed_the_limits(lasts_s: float, calm_s: float, goes: bool):
    """It may until it stands, and up to twice; then again once none has waited for a while."""
    made = router(2, more={**AUTO, "hold_s": 10.0})
    for each in (0, 1):
        made.registry.observe(key(each).id, (Reading(0.0, "m", slots=2.0),))

    def ask(now: float, priority: int | None = None) -> Decision | None:
        features = Features(Form.GENERATE, model="m", priority=priority)
        request = Request(POOL, None, "http", features)
        waiting = QueuedRequest(request, 1, now, None, 10.0, lambda _: None)
        told = made.wait(waiting, now, now)
        if told is None:
            made.queue.leave(waiting)
        assert not isinstance(told, Refusal)
        return told

    def end(count: int, now: float) -> None:
        for ticket in list(made.ledger)[:count]:
            made.settle(ticket, Outcome.DONE, now)

    for _ in range(7):
        assert ask(0.0)
    assert ask(0.0, 2) is None
    for _ in range(5):
        assert ask(0.5)
    assert ask(0.5) is None
    end(1, lasts_s)
    assert (ask(lasts_s) is None) == (lasts_s >= BURST_S)
    end(6, lasts_s)
    now = lasts_s + calm_s
    while made.limits.usage(made.pools[POOL])[""].in_flight < 6:
        assert ask(now)
    assert (ask(now) is not None) == goes


def test_a_burst_does_not_exceed_a_loose_limit():
    """Slots that are learned from how fast answers end may be far too many."""
    made = router(1, more={**AUTO, "hold_s": 10.0})
    made.limits.answered(key(0), "m", 60, 1.0)
    limit = told(made)
    assert limit is not None
    assert limit.source == "learned"
    for _ in range(limit.most):
        send(made)
    request = Request(POOL, None, "http", Features(Form.GENERATE, model="m"))
    assert made.wait(QueuedRequest(request, 1, 1.0, None, 10.0, lambda _: None), 1.0, 1.0) is None


@pytest.mark.parametrize(("slots", "more"), [(2, 3), (8, 4), (39, 10)])
def test_a_burst_may_exceed_slots_of_answers_under_way_by_a_quarter(slots: int, more: int):
    """By four at least, and at most twice."""
    made = router(1, more={**AUTO, "hold_s": 10.0})
    made.limits.answered(key(0), "m", 1, 0.0)
    streams = made.limits._slots[key(0)][""].streams
    streams.slots, streams.loose = slots, False
    made.limits._apply(key(0))
    request = Request(POOL, None, "http", Features(Form.GENERATE, model="m"))
    for _ in range(slots + 1 + more):
        assert isinstance(made.decide(request, 0.0, 0.0), Decision)
    assert isinstance(made.decide(request, 0.0, 0.0), Refusal)


def test_each_model_of_a_triton_has_its_own_room():
    """Where a replica has several models, the requests of one take no room of another."""
    made = router(1, more=TWO)
    readings = [Reading(1.0, "m", "1", slots=2.0), Reading(1.0, "n", "1", slots=4.0)]
    made.registry.observe("r0", readings)
    send(made)
    assert (room(made), room(made, "n"), room(made, "other")) == (2, 5, None)


def test_all_names_of_an_engine_share_its_room():
    """Adapters of an engine run in its one batch."""
    made = router(1, more=TWO)
    made.registry.observe("r0", [full(1.0, 1.0, slots=2.0)])
    send(made)
    send(made, "n")
    assert room(made) == room(made, "n") == room(made, "other") == 1


def test_other_models_of_a_page_are_no_limit_of_a_pool_with_one():
    """A Triton's page also has models that the pool does not list."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [Reading(1.0, "x", "1", slots=1.0)])
    assert told(made) is None


def test_requests_of_peer_workers_take_room():
    """Workers share a limit by what they see of each other; a lost one's requests are forgotten."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [full(1.0, 1.0, slots=4.0)])
    made.peers.follow(1, Share(POOL, key(0), 3, 30.0, 3, 0.0, "m"), 1.0)
    made.peers.follow(1, Share(POOL, key(0), 1, 10.0, 1, 0.0), 1.0)  # a stream
    assert room(made) == 2
    made.peers.follow(1, Share(POOL, key(0), 1, 10.0, 4, 0.0, "m"), 2.0)
    assert room(made) == 4
    made.peers.lost(1)
    assert (room(made), made.ledger.load(key(0)).by_model) == (5, {})


def test_abandoned_work_takes_room_until_it_can_have_ended():
    """A caller that left does not free the slot that its request has."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [full(1.0, 1.0, slots=2.0)])
    ticket = send(made)
    made.registry.abandoned.left(ticket, key(0), 0.0, 2.0)
    made.settle(ticket, Outcome.ABORTED, 2.0)
    assert room(made) == 2
    made.registry.sweep(100.0)
    assert room(made) == 3


def test_a_restart_forgets_what_was_seen():
    """The new process may have another size."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [full(1.0, 1.0, slots=2.0)])
    made.registry.restarted("r0", 5.0)
    assert (told(made), room(made)) == (None, None)


def test_a_pool_that_gets_a_second_model_has_limits_by_model():
    """What was known of the replica as a whole does not stay in force."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [Reading(1.0, "m", "1", slots=2.0)])
    made.set_pools({POOL: pool(1, **TWO)}, 1.0)
    assert room(made) is None
    made.registry.observe("r0", [Reading(2.0, "m", "1", slots=2.0)])
    assert (room(made), room(made, "n")) == (3, None)


def test_names_have_a_bound():
    """Pages cannot make the picker remember more than ``MAX_NAMES`` names."""
    made = router(1, more={"limit": "auto"})
    for first in range(0, MAX_NAMES + 256, 256):
        names = [f"n{number}" for number in range(first, first + 256)]
        made.registry.observe("r0", [Reading(1.0 + first, each, "1") for each in names])
    assert len(made.limits.names) == MAX_NAMES


def answer(made: Router, count: int, now: float, at_once: int = 8) -> None:
    """Have requests answered, so many at a time."""
    for _ in range(count // at_once):
        tickets = [send(made) for _ in range(at_once)]
        for ticket in tickets:
            made.settle(ticket, Outcome.DONE, now)


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        (AUTO, Limit(10, "learned")),
        ({**AUTO, "limit": "none"}, None),
        ({**AUTO, "per_endpoint_in_flight": 100}, Limit(100, "set")),
    ],
)
def test_limits_are_learned_from_answers(more: dict[str, Any], limit: Limit | None):
    """After 50 answers of an engine that tells nothing, where the pool asks for limits."""
    made = router(1, more=more)
    changed = []
    made.limits.on_change = changed.append
    answer(made, 48, 1.0)
    assert room(made) in {None, 100}
    answer(made, 8, 2.0)
    assert told(made) == limit
    assert changed == ([key(0)] if limit is not None and limit.source == "learned" else [])


def test_what_an_engine_tells_wins_over_what_was_learned():
    """A reading that comes later replaces the guess."""
    made = router(1, more=AUTO)
    answer(made, 56, 1.0)
    made.registry.observe("r0", [full(1.0, 1.0, slots=2.0)])
    assert told(made) == Limit(3, "declared")


def test_failures_teach_nothing():
    """A request that was aborted is no answer."""
    made = router(1, more=AUTO)
    for _ in range(60):
        made.settle(send(made), Outcome.ABORTED, 1.0)
    assert told(made) is None


def test_answers_of_peer_workers_count():
    """All workers see nearly the same answers, so they learn nearly the same."""
    made = router(1, more=AUTO)
    made.peers.follow(1, Share(POOL, key(0), 8, 80.0, 8, 0.0, "m"), 1.0)
    made.peers.follow(1, Share(POOL, key(0), 0, 0.0, 60, 0.0, "m"), 2.0)
    assert told(made) is not None


def test_streams_of_peer_workers_are_no_stream_here():
    """Their first bytes are not known, so the rule for answers that come whole holds."""
    slots = Slots()
    for number in range(200):
        now = 10.0 + number
        slots.streams.answers.began(number, now - 4.0, 0.5)
        slots.streams.answers.ended(number, now - 4.0, now)
        slots.answered(8, 1, now)
        slots.answered(8, 1, now, own=False)
    assert slots.streams.slots is None
    assert slots.learned.slots is not None


def test_models_of_a_triton_are_learned_apart():
    """Each model has its own limit, and a request without a model has none."""
    made = router(1, more=TWO)
    answer(made, 56, 1.0)
    assert told(made) == Limit(10, "learned")
    assert told(made, "n") is None
    assert room(made, "") is None


def test_explanations_and_the_state_name_limit_and_source():
    """``/debug`` has what is known, and why a full replica is no candidate."""
    made = router(2, more=AUTO)
    made.registry.observe("r0", [full(1.0, 1.0, slots=1.0)])
    send(made)
    request = Request(POOL, None, "http", Features(Form.GENERATE, model="m"))
    candidates = {each["id"]: each for each in made.explain(request, 1.0, 1.0)["candidates"]}
    assert (candidates["r0"]["limit"], candidates["r0"]["limit_by"]) == (2, "declared")
    assert (candidates["r1"]["limit"], candidates["r1"]["limit_by"]) == (None, None)
    endpoints = made.state(1.0)["pools"][POOL]["endpoints"]
    in_flight = made.ledger.load(key(0)).limited
    told = {"slots": 1, "slots_by": "declared", "limit": 2, "limit_by": "declared"}
    assert endpoints["r0"]["limits"] == {"": {**told, "in_flight": in_flight}}
    assert endpoints["r1"]["limits"] == {}


def test_the_state_names_a_limit_that_is_set():
    """Where nothing is known of slots, too."""
    made = router(1, more={"per_endpoint_in_flight": 3})
    told = {"slots": None, "slots_by": None, "limit": 3, "limit_by": "set", "in_flight": 0}
    assert made.state(1.0)["pools"][POOL]["endpoints"]["r0"]["limits"] == {"": told}


def test_usage_is_that_of_replicas_with_known_slots():
    """Requests per slot, and how many replicas would be at 70 %."""
    made = router(3, more=AUTO)
    for name in ("r0", "r1"):
        made.registry.observe(name, [full(1.0, 1.0, slots=4.0)])
    for _ in range(30):
        send(made)
    load = sum(made.ledger.load(key(each)).limited for each in (0, 1))
    (usage,) = made.limits.usage(made.pools[POOL]).values()
    assert usage == (load, 8, 2)
    assert usage.utilisation == load / 8
    assert usage._replace(in_flight=7).needed(0) == 3  # 7 of 8.4 slots; two have 5.6
    assert usage._replace(in_flight=5).needed(0) == 2
    assert usage._replace(in_flight=5).needed(4) == 4
    assert usage._replace(in_flight=0).needed(0) == 1


def test_a_request_that_cannot_wait_is_not_limited():
    """Behind a generic proxy it would be refused at once; a limit that is set counts there too."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [full(1.0, 1.0, slots=1.0)])
    request = Request(POOL, None, "http", Features(Form.GENERATE, model="m"), limited=False)
    for _ in range(5):
        assert isinstance(made.decide(request, 0.0, 0.0), Decision)
    made.set_pools({POOL: pool(1, **AUTO, per_endpoint_in_flight=5)}, 1.0)
    assert isinstance(made.decide(request, 1.0, 1.0), Refusal)


def test_an_engine_that_tells_its_queue_has_no_limit_before_it_has_one():
    """However many answers it gave: what waits is seen as soon as there is any."""
    made = router(1, more=AUTO)
    made.registry.observe("r0", [full(1.0, 8.0, waiting=0.0)])
    answer(made, 200, 1.0)
    assert told(made) is None
    made.registry.restarted("r0", 2.0)
    answer(made, 56, 3.0)
    assert told(made) == Limit(10, "learned")


def test_what_makes_room_lets_waiting_requests_be_tried():
    """A limit that changes, and a peer's request that ends; not where no request waits."""
    made, tried = router(1, more={**AUTO, "hold_s": 10.0}), []
    made.on_room = lambda: tried.append(made.queue.count)
    made.registry.observe("r0", [full(1.0, 1.0, slots=1.0)])
    assert tried == []
    send(made)
    made.peers.follow(1, Share(POOL, key(0), 1, 10.0, 1, 0.0, "m"), 1.0)
    send(made)  # a burst
    request = Request(POOL, None, "http", Features(Form.GENERATE, model="m"))
    waiting = QueuedRequest(request, 1, BURST_S, None, 10.0, lambda _: None)
    assert made.wait(waiting, BURST_S, BURST_S) is None
    made.peers.follow(1, Share(POOL, key(0), 0, 0.0, 1, 0.0, "m"), 2.0)
    assert tried == [1]
    made.registry.observe("r0", [full(2.0, 1.0, slots=2.0)])
    assert tried == [1, 1]
