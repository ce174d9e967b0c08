"""The router: one request in, an ordered choice or a refusal out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.ledger import Charged, EndpointRemoved, Ledger, Settled
from ext_proc.routing.policies import POLICIES
from ext_proc.routing.pool_settings import SlowStart
from ext_proc.routing.prefix_index import Inserted, PrefixIndex, Purged
from ext_proc.routing.types import (
    Decision,
    EndpointKey,
    Features,
    Form,
    Outcome,
    Reading,
    Refusal,
    RefusalKind,
    Request,
    Variant,
)

if TYPE_CHECKING:
    from ext_proc.routing.router import Router

    from .conftest import Build


def decide(router: Router, request: Request, now: float = 0.0, unix_now: float = 0.0) -> Decision:
    decision = router.decide(request, now, unix_now)
    assert isinstance(decision, Decision), decision
    return decision


def refuse(router: Router, request: Request, now: float = 0.0) -> Refusal:
    refusal = router.decide(request, now, 0.0)
    assert isinstance(refusal, Refusal), refusal
    return refusal


PROMPT = tuple(range(1, 41))


def end(router: Router, decision: Decision) -> None:
    assert decision.ticket is not None
    assert router.settle(decision.ticket, Outcome.DONE, 0.0)


# --- Choice -------------------------------------------------------------------------------------


def test_a_decision_is_the_pick_and_its_fallbacks(build: Build) -> None:
    """The addresses are different replicas, as many fallbacks as the pool says."""
    router = build.router(build.pool(4, fallbacks=2))
    decision = decide(router, build.request((1, 2)))
    assert len(set(decision.addresses)) == 3
    assert decision.retriable
    assert (decision.pool, decision.variant, decision.reason) == ("llm", "stable", "least")
    assert {name for name, _ in decision.scores} == {"r0", "r1", "r2", "r3"}


def test_fallbacks_are_as_many_as_there_are(build: Build) -> None:
    """A pool of one has no fallback."""
    assert len(decide(build.router(build.pool(1)), build.request()).addresses) == 1


def test_the_protocol_chooses_the_address(build: Build) -> None:
    """A gRPC request gets gRPC addresses of the replica whose load both protocols share."""
    router = build.router(build.pool(1))
    assert decide(router, build.request(protocol="grpc")).addresses == ("10.0.0.0:8001",)
    assert decide(router, build.request(protocol="http")).addresses == ("10.0.0.0:8000",)
    assert router.in_flight() == {"r0": 2}


def test_a_conversation_stays_where_its_prefix_is(build: Build) -> None:
    """Each turn goes to the replica of the turn before, and only the new part is work."""
    router = build.router(build.pool(8))
    first = decide(router, build.request((1, 2, 3)))
    second = decide(router, build.request((1, 2, 3, 4)))
    assert second.addresses[0] == first.addresses[0]
    assert (second.reason, second.matched_blocks) == ("prefix", 3)
    assert second.ticket is not None
    assert second.ticket.work == 64.0


@pytest.mark.parametrize("shared", [1, 3])
def test_conversations_behind_one_system_prompt_spread(build: Build, shared: int) -> None:
    """A thousand conversations that share their first blocks do not collapse on one replica."""
    router = build.router(build.pool(8))
    prompt = tuple(range(shared))
    picks: Counter[str] = Counter()
    for number in range(1_000):
        own = tuple(1_000 * (number + 1) + depth for depth in range(6))
        decision = decide(router, build.request(prompt + own), number * 0.01)
        picks[decision.addresses[0]] += 1
        end(router, decision)
    assert max(picks.values()) / (1_000 / 8) < 1.3


def test_a_hot_prefix_spills_over_its_bound(build: Build) -> None:
    """One prompt in flight many times is spread within the bound of loads."""
    router = build.router(build.pool(4, load_factor=1.25))
    reasons = Counter(decide(router, build.request((1, 2, 3, 4))).reason for _ in range(80))
    assert reasons["prefix"] > 0
    assert max(router.in_flight().values()) <= 26


def test_other_requests_leave_no_trace(build: Build) -> None:
    """What is not inference goes to the least loaded, with no ticket, block or lease."""
    router = build.router(build.pool(2))
    busy = decide(router, build.request())
    for _ in range(5):
        decision = decide(router, build.request((1,), form=Form.OTHER, sequence_id=7))
        assert decision.ticket is None
        assert decision.reason == "other"
        assert decision.addresses[0] != busy.addresses[0]
    assert (len(router.ledger), router.index.blocks, len(router.leases)) == (1, 0, 0)


def test_the_queue_of_others_counts_while_fresh(build: Build) -> None:
    """A replica that others keep busy is avoided until its reading is old."""
    router = build.router(build.pool(2, policy="least-in-flight"))
    router.observe("r0", [Reading(at=10.0, model="m", queued=5.0)])
    router.observe("nobody", [Reading(at=10.0, queued=5.0)])
    for _ in range(4):
        assert decide(router, build.request(), 11.0).addresses[0] == "10.0.0.1:8000"
    assert decide(router, build.request(), 12.0).addresses[0] == "10.0.0.0:8000"


def test_a_replica_that_fell_silent_is_chosen_last(build: Build) -> None:
    """Also where it holds the prompt; it stays the last fallback, and a reading ends it."""
    router = build.router(build.pool(2))
    home = decide(router, build.request((1, 2, 3)))
    end(router, home)
    name = "r0" if home.addresses[0] == "10.0.0.0:8000" else "r1"
    router.observe(name, [Reading(at=1.0, queued=0.0)])
    router.silent(name)
    away = decide(router, build.request((1, 2, 3)), 1.0)
    assert away.addresses == (home.addresses[1], home.addresses[0])
    end(router, away)
    router.observe(name, [Reading(at=2.0, queued=0.0)])
    back = {decide(router, build.request((1, 2, 3)), 2.0).addresses[0] for _ in range(2)}
    assert home.addresses[0] in back


def test_a_replica_that_never_spoke_is_not_silent(build: Build) -> None:
    """A metrics port that was never reached says nothing about the replica."""
    router = build.router(build.pool(1))
    router.silent("r0")
    assert decide(router, build.request()).addresses == ("10.0.0.0:8000",)
    spread = build.router(build.pool(2))
    spread.silent("r0")
    picks = {decide(spread, build.request()).addresses[0] for _ in range(2)}
    assert len(picks) == 2


@pytest.mark.parametrize("settles", [True, False])
def test_a_new_replica_takes_its_ramp_s_share(build: Build, settles: bool) -> None:
    """While it ramps a replica gets its ramped share, in an idle fleet and in a full one."""
    endpoints = (build.endpoint(0), build.endpoint(1, joined_unix_s=1000.0))
    pool = build.pool(
        endpoints=endpoints, policy="least-in-flight", slow_start=SlowStart(100.0, 1.0, 0.1)
    )
    router = build.router(pool)
    picks: Counter[str] = Counter()
    for _ in range(2000):
        decision = decide(router, build.request(), 0.0, 1025.0)
        picks[decision.addresses[0]] += 1
        if settles:
            end(router, decision)
    assert picks["10.0.0.1:8000"] / 2000 == pytest.approx(0.2, abs=0.03)


def test_a_warm_replica_takes_as_much_as_the_others(build: Build) -> None:
    """When its ramp is over a replica is like any other."""
    endpoints = (build.endpoint(0), build.endpoint(1, joined_unix_s=1000.0))
    pool = build.pool(endpoints=endpoints, policy="least-in-flight", slow_start=SlowStart(100.0))
    router = build.router(pool)
    for _ in range(60):
        decide(router, build.request(), 0.0, 1100.0)
    assert router.in_flight() == {"r0": 30, "r1": 30}


def test_a_young_replica_keeps_its_conversations(build: Build) -> None:
    """A ramping replica that holds the prompt gets it, whatever its turn."""
    endpoints = (build.endpoint(0, draining=True), build.endpoint(1, joined_unix_s=1000.0))
    slow = SlowStart(100.0, 1.0, 0.1)
    router = build.router(build.pool(endpoints=endpoints, slow_start=slow))
    end(router, decide(router, build.request((1, 2, 3)), 0.0, 1001.0))
    both = (build.endpoint(0), build.endpoint(1, joined_unix_s=1000.0))
    router.set_pools({"llm": build.pool(endpoints=both, slow_start=slow)}, 1.0)
    for turn in range(4, 20):
        decision = decide(router, build.request(tuple(range(1, turn))), 1.0, 1002.0)
        assert decision.addresses[0] == "10.0.0.1:8000"
        end(router, decision)


# --- Variants -----------------------------------------------------------------------------------


def canaried(build: Build, **changes: object) -> Router:
    return build.router(
        build.pool(
            variants=(
                Variant("stable", 75, "1"),
                Variant("canary", 25, "2", (("x-canary", "yes"),)),
            ),
            endpoints=(build.endpoint(0), build.endpoint(1, variant="canary")),
            **changes,
        )
    )


def test_the_router_draws_where_nobody_drew(build: Build) -> None:
    """Shares follow the weights, and the address is one of the drawn variant."""
    router = canaried(build)
    drawn = Counter(decide(router, build.request()).variant for _ in range(2_000))
    assert drawn["canary"] / 2_000 == pytest.approx(0.25, abs=0.04)
    assert decide(router, build.request(variant="canary")).addresses == ("10.0.0.1:8000",)


def test_pins_override_what_the_route_drew(build: Build) -> None:
    """Version and header decide over Envoy's draw; an unknown version is refused."""
    router = canaried(build)
    assert decide(router, build.request(variant="stable", version="2")).variant == "canary"
    pinned = build.request(variant="stable", headers={"x-canary": "yes"})
    assert decide(router, pinned).variant == "canary"
    assert refuse(router, build.request(version="9")).kind is RefusalKind.UNKNOWN_VERSION


# --- Refusals -----------------------------------------------------------------------------------


def test_an_unknown_pool_is_refused(build: Build) -> None:
    """A pool that is not there refuses by name."""
    refusal = refuse(build.router(), build.request())
    assert refusal == Refusal(RefusalKind.UNKNOWN_POOL, "no pool is named 'llm'")


def test_nobody_left_is_503(build: Build) -> None:
    """A variant whose endpoints are missing or all draining has none."""
    empty = build.router(build.pool(0))
    draining = build.router(build.pool(endpoints=(build.endpoint(0, draining=True),)))
    outside = build.request(subset=frozenset())
    assert refuse(empty, build.request()).kind is RefusalKind.NO_ENDPOINTS
    assert refuse(draining, build.request()).kind is RefusalKind.NO_ENDPOINTS
    assert refuse(build.router(build.pool(2)), outside).kind is RefusalKind.NO_ENDPOINTS


def test_everybody_full_is_429_until_one_settles(build: Build) -> None:
    """At the in-flight limit requests are refused, and other requests still pass."""
    router = build.router(build.pool(2, per_endpoint_in_flight=1))
    first, second = decide(router, build.request()), decide(router, build.request())
    assert first.addresses[0] != second.addresses[0]
    assert refuse(router, build.request()).kind is RefusalKind.SATURATED
    assert decide(router, build.request(form=Form.OTHER)).ticket is None
    end(router, first)
    assert decide(router, build.request()).addresses == first.addresses[:1]


def test_a_refusal_changes_nothing(build: Build) -> None:
    """No ticket, no block and no lease come from a request that nobody serves."""
    router = build.router(build.pool(1))
    refuse(router, build.request((1, 2), subset=frozenset({"10.9.9.9"}), sequence_id=1))
    assert (len(router.ledger), router.index.blocks, len(router.leases)) == (0, 0, 0)


def test_beyond_the_bound_of_tickets_requests_go_uncounted(build: Build) -> None:
    """A full ledger costs the count, not the request."""
    router = build.router(build.pool(1), max_tickets=1)
    assert decide(router, build.request()).ticket is not None
    assert decide(router, build.request()).ticket is None
    assert router.ledger.overflowed == 1


# --- Sequences ----------------------------------------------------------------------------------


def test_a_charge_moves_to_who_served(build: Build) -> None:
    """V115: after a retry the replica that served holds the request, under a ticket of its own."""
    events: list[object] = []
    router = build.router(build.pool(3), on_event=events.append)
    decision = decide(router, build.request())
    assert decision.ticket is not None
    moved = router.served(decision.ticket, decision.addresses[1], 1.0)
    other = moved.endpoint.id
    assert (router.in_flight()[other], sum(router.in_flight().values())) == (1, 1)
    assert moved.work == decision.ticket.work
    assert not router.settle(decision.ticket, Outcome.DONE, 1.0)
    assert router.settle(moved, Outcome.DONE, 1.0)
    assert router.ledger.outcomes == {Outcome.MOVED: 1, Outcome.DONE: 1}
    follower = Ledger()
    for event in events:
        if isinstance(event, Charged | Settled | EndpointRemoved):
            follower.apply(event)
    assert follower.outcomes == router.ledger.outcomes


def test_a_charge_stays_where_nothing_is_known(build: Build) -> None:
    """V29: the pick itself, an unknown address, a settled ticket: the ticket is the same."""
    router = build.router(build.pool(2))
    decision = decide(router, build.request())
    ticket = decision.ticket
    assert ticket is not None
    assert router.served(ticket, decision.addresses[0], 1.0) is ticket
    assert router.served(ticket, "10.9.9.9:1", 1.0) is ticket
    end(router, decision)
    assert router.served(ticket, decision.addresses[1], 1.0) is ticket
    assert len(router.ledger) == 0


def test_a_sequence_stays_on_its_replica(build: Build) -> None:
    """All its requests have one address, no retry elsewhere, until it ends."""
    router = build.router(build.pool(8))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    assert (len(first.addresses), first.retriable) == (1, False)
    for _ in range(10):
        again = decide(router, build.request(sequence_id=5))
        assert (again.addresses, again.reason) == (first.addresses, "sequence")
    last = decide(router, build.request(sequence_id=5, sequence_end=True))
    assert last.addresses == first.addresses
    assert len(router.leases) == 0


def test_a_lease_ends_with_its_idle_time(build: Build) -> None:
    """Each request prolongs the lease; after the idle time the sequence is routed afresh."""
    router = build.router(build.pool(4, sequence_idle_s=10.0))
    decide(router, build.request(sequence_id=5), 0.0)
    assert decide(router, build.request(sequence_id=5), 9.0).reason == "sequence"
    assert decide(router, build.request(sequence_id=5), 18.0).reason == "sequence"
    assert decide(router, build.request(sequence_id=5), 28.0).reason == "least"


def test_a_lease_outlives_draining_but_a_new_start_does_not(build: Build) -> None:
    """On a draining replica a sequence goes on; starting again takes it elsewhere."""
    router = build.router(build.pool(2))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    gone = first.addresses[0]
    endpoints = tuple(
        replace(each, draining=each.http == gone) for each in router.pools["llm"].endpoints
    )
    router.set_pools({"llm": build.pool(endpoints=endpoints)}, 1.0)
    assert decide(router, build.request(sequence_id=5)).addresses == (gone,)
    restarted = decide(router, build.request(sequence_id=5, sequence_start=True))
    assert restarted.addresses != (gone,)
    assert decide(router, build.request(sequence_id=5)).addresses == restarted.addresses


def test_a_second_start_stays_where_the_state_is(build: Build) -> None:
    """A duplicate start on a serving replica keeps the replica."""
    router = build.router(build.pool(8))
    first = decide(router, build.request(sequence_id=5, sequence_start=True))
    again = decide(router, build.request(sequence_id=5, sequence_start=True))
    assert again.addresses == first.addresses


def test_a_sequence_keeps_its_variant(build: Build) -> None:
    """The lease is stronger than a new draw of Envoy's route."""
    router = canaried(build)
    decide(router, build.request(sequence_id=5, variant="canary"))
    decision = decide(router, build.request(sequence_id=5, variant="stable"))
    assert (decision.variant, decision.addresses) == ("canary", ("10.0.0.1:8000",))


def test_a_sequence_without_its_replica_is_routed_as_usual(build: Build) -> None:
    """When the endpoint left the pool, the lease goes and the request does not fail here."""
    pool, other = build.pool(2), build.pool(2, name="other", models=frozenset())
    router = build.router(pool, other)
    first = decide(router, build.request(sequence_id=5))
    left = tuple(each for each in pool.endpoints if each.http != first.addresses[0])
    router.set_pools({"llm": build.pool(endpoints=left), "other": other}, 1.0)
    assert decide(router, build.request(sequence_id=5)).addresses == (left[0].http,)
    router.set_pools({"llm": build.pool(endpoints=(build.endpoint(9),))}, 1.0)
    assert len(router.leases) == 0


def test_a_sequence_is_refused_rather_than_torn_from_its_state(build: Build) -> None:
    """A full, excluded or mute replica refuses its sequence; nobody else has the state."""
    endpoints = (build.endpoint(0, grpc=None),)
    router = build.router(build.pool(endpoints=endpoints, per_endpoint_in_flight=1))
    decide(router, build.request(sequence_id=5))
    endpoints += (build.endpoint(1),)
    router.set_pools({"llm": build.pool(endpoints=endpoints, per_endpoint_in_flight=1)}, 0.0)
    assert refuse(router, build.request(sequence_id=5)).kind is RefusalKind.SATURATED
    outside = build.request(sequence_id=5, subset=frozenset({"10.0.0.1"}))
    assert refuse(router, outside).kind is RefusalKind.NO_ENDPOINTS
    mute = build.request(sequence_id=5, protocol="grpc")
    assert refuse(router, mute).kind is RefusalKind.NO_ENDPOINTS


# --- Membership ---------------------------------------------------------------------------------


def test_an_endpoint_gone_from_all_pools_is_forgotten(build: Build) -> None:
    """Its tickets settle once, its blocks go; one that another pool still has stays."""
    pool = build.pool(1)
    other = build.pool(1, name="other", models=frozenset({"n"}))
    router = build.router(pool, other)
    decision = decide(router, build.request((1, 2)))
    assert decision.ticket is not None
    router.set_pools({"other": other}, 1.0)
    assert router.in_flight() == {"r0": 1}
    router.set_pools({}, 1.0)
    assert router.in_flight() == {}
    assert router.index.match_all((1, 2)) == {}
    assert not router.settle(decision.ticket, Outcome.DONE, 1.0)
    assert router.ledger.outcomes == {Outcome.REMOVED: 1}


def test_a_change_of_policy_keeps_ledger_and_index(build: Build) -> None:
    """What is in flight and what is cached outlive a hot reload."""
    router = build.router(build.pool(2))
    decide(router, build.request(PROMPT))
    router.set_pools({"llm": build.pool(2, policy="round-robin")}, 1.0)
    assert sum(router.in_flight().values()) == 1
    decision = decide(router, build.request(PROMPT))
    assert decision.reason == "round-robin"
    router.set_pools({"llm": build.pool(2)}, 1.0)
    assert decide(router, build.request(PROMPT)).reason == "prefix"


def test_a_change_elsewhere_keeps_the_cursor(build: Build) -> None:
    """Round-robin goes on where it was when only weights or limits changed."""
    router = build.router(build.pool(3, policy="round-robin"))
    first = decide(router, build.request()).addresses[0]
    router.set_pools({"llm": build.pool(3, policy="round-robin", fallbacks=0)}, 1.0)
    rest = {decide(router, build.request()).addresses[0] for _ in range(2)}
    assert len(rest | {first}) == 3


def test_an_unknown_policy_changes_nothing(build: Build) -> None:
    """One bad pool costs one clear error; the pools in force stay."""
    router = build.router(build.pool(2))
    decide(router, build.request())
    with pytest.raises(ValueError, match="unknown policy 'magic'"):
        router.set_pools({"llm": build.pool(0, policy="magic")}, 1.0)
    assert sum(router.in_flight().values()) == 1
    assert len(decide(router, build.request()).addresses) == 2


def test_a_restart_empties_cache_and_leases_and_ramps_again(build: Build) -> None:
    """After a restart the replica matches nothing, holds no sequence, and starts small."""
    router = build.router(build.pool(1, slow_start=SlowStart(100.0)))
    decide(router, build.request((1, 2), sequence_id=5))
    router.restarted("nobody", 1000.0)
    assert len(router.leases) == 1
    router.restarted("r0", 1000.0)
    decision = decide(router, build.request((1, 2), sequence_id=5), 0.0, 1010.0)
    assert (decision.matched_blocks, decision.reason) == (0, "least")
    older = build.endpoint(0, joined_unix_s=900.0)
    pool = build.pool(
        endpoints=(older, build.endpoint(1)), slow_start=SlowStart(100.0), policy="least-in-flight"
    )
    router.set_pools({"llm": pool}, 1.0)
    picks = Counter(decide(router, build.request(), 1.0, 1010.0).addresses[0] for _ in range(500))
    assert picks["10.0.0.0:8000"] / 500 == pytest.approx(0.1 / 1.1, abs=0.04)


def placed(router: Router, build: Build) -> dict[int, str]:
    """Take the next turn of two hundred conversations, one after the other."""
    places = {}
    for number in range(200):
        blocks = tuple(1_000 * number + depth for depth in range(4))
        decision = decide(router, build.request(blocks))
        places[number] = decision.addresses[0]
        end(router, decision)
    return places


def test_membership_changes_surprise_nobody_else(build: Build) -> None:
    """A new replica moves no conversation; a lost one moves only its own."""
    router = build.router(build.pool(4))
    before = placed(router, build)
    router.set_pools({"llm": build.pool(5)}, 1.0)
    assert placed(router, build) == before
    router.set_pools({"llm": build.pool(3)}, 2.0)
    after = placed(router, build)
    for number, address in before.items():
        assert address == "10.0.0.3:8000" or after[number] == address


# --- Which pool ---------------------------------------------------------------------------------

CHAT = "/v1/chat/completions"


def test_the_pool_is_found_by_header_model_path_or_default(build: Build) -> None:
    """A header names it outright, then the model, then the default of the form."""
    router = build.router(
        build.pool(name="a", models=frozenset({"m", "x"})),
        build.pool(
            name="b",
            models=frozenset({"n", "x"}),
            paths=frozenset({CHAT}),
            default_for_grpc=True,
            default_for_paths=frozenset({CHAT}),
        ),
    )

    def found(path: str, protocol: str = "http", **says: str) -> str | RefusalKind:
        answer = router.pool_for(Features(Form.OPENAI, **says), path, protocol)
        return answer.kind if isinstance(answer, Refusal) else answer

    assert found("/", pool="a", model="n") == "a"
    assert found("/", pool="zzz") is RefusalKind.UNKNOWN_POOL
    assert found("/", model="m") == "a"
    assert found("/", "grpc", model="x") == "a"
    assert found(CHAT + "?k=v", model="x") == "b"
    assert found(CHAT, model="m") is RefusalKind.UNKNOWN_MODEL
    assert found("/", model="zzz") is RefusalKind.UNKNOWN_MODEL
    assert found(CHAT) == "b"
    assert found("/inference.GRPCInferenceService/ModelInfer", "grpc") == "b"
    assert found("/v1/embeddings") is RefusalKind.UNKNOWN_MODEL


# --- Events and invariants ----------------------------------------------------------------------


def test_a_follower_of_the_events_holds_the_same_state(build: Build) -> None:
    """Ledger and index can be rebuilt from what ``on_event`` heard."""
    events: list[object] = []
    router = build.router(build.pool(3), on_event=events.append)
    decisions = [decide(router, build.request((1, number)), float(number)) for number in range(9)]
    end(router, decisions[0])
    router.restarted("r1", 0.0)
    router.set_pools({"llm": build.pool(2)}, 9.0)
    ledger, index = Ledger(), PrefixIndex()
    for event in events:
        if isinstance(event, Charged | Settled | EndpointRemoved):
            ledger.apply(event)
        elif isinstance(event, Inserted | Purged):
            index.apply(event)
    assert list(ledger) == list(router.ledger)
    assert index.match_all((1, 3)) == router.index.match_all((1, 3))
    assert ledger.outcomes == router.ledger.outcomes


def test_the_same_seed_gives_the_same_decisions(build: Build) -> None:
    """A log replayed with one seed decides alike."""
    runs = []
    for _ in range(2):
        router = build.router(build.pool(5), seed=4)
        runs.append(
            [decide(router, build.request((number % 7,))).addresses for number in range(50)]
        )
    assert runs[0] == runs[1]


def test_repr_says_what_it_routes(build: Build) -> None:
    """The router shows pools, open tickets and index."""
    router = build.router(build.pool(1))
    assert repr(router) == "<Router pools=1 open=0 <PrefixIndex blocks=0 endpoints=0>>"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), st.integers(0, 5), st.sampled_from([None, 1, "1"])),
        st.tuples(st.just("settle"), st.integers(0, 30)),
        st.tuples(st.just("pools"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("restart"), st.integers(0, 4)),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(steps=STEPS)
def test_loads_always_match_the_open_requests(
    build: Build, steps: list[tuple[object, ...]]
) -> None:
    """Through any order of requests, ends, members, drains and restarts the counts balance."""
    router = build.router(build.pool(3))
    members, decisions = 3, []
    for now, step in enumerate(steps):
        if step[0] == "decide":
            _, prompt, sequence = step
            request = build.request(tuple(range(prompt)), sequence_id=sequence)
            answer = router.decide(request, float(now), float(now))
            assert isinstance(answer, Decision) or answer.kind is RefusalKind.NO_ENDPOINTS
            if isinstance(answer, Decision):
                assert answer.retriable == (sequence is None)
                decisions.append(answer.ticket)
        elif step[0] == "settle" and decisions:
            router.settle(decisions[step[1] % len(decisions)], Outcome.DONE, float(now))
        elif step[0] == "pools":
            members = step[1]
            endpoints = [build.endpoint(number) for number in range(members)]
            if endpoints:
                endpoints[0] = replace(endpoints[0], draining=step[2])
            router.set_pools({"llm": build.pool(endpoints=tuple(endpoints))}, float(now))
        elif step[0] == "restart":
            router.restarted(f"r{step[1]}", float(now))
        loads = router.in_flight()
        assert set(loads) == {f"r{number}" for number in range(members)}
        assert sum(loads.values()) == len(router.ledger)
        assert min(loads.values(), default=0) >= 0


# --- Policies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_each_policy_may_be_swapped_in_and_out(build: Build, name: str) -> None:
    """Ledger and index outlive any change of policy, and every ticket settles once."""
    router = build.router(build.pool(3))
    decisions = [decide(router, build.request(PROMPT, session="s"))]
    for policy in (name, "auto"):
        router.set_pools({"llm": build.pool(3, policy=policy)}, 1.0)
        assert sum(router.in_flight().values()) == len(decisions)
        assert router.index.blocks == len(PROMPT)
        decisions += [decide(router, build.request(PROMPT, session="s"), 1.0) for _ in range(5)]
    for decision in decisions:
        end(router, decision)
    assert set(router.in_flight().values()) == {0}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_request_may_ask_for_an_allowed_policy(build: Build, name: str) -> None:
    """The header chooses for this request alone; the pool's policy goes on for the others."""
    pool = build.pool(3, policy="round-robin", allow_override=frozenset(POLICIES))
    router = build.router(pool)
    asked = build.request(PROMPT, headers={"tidegate-policy": name})
    for _ in range(4):
        assert router.explain(asked, 0.0, 0.0)["policy"] == name
        decide(router, asked)
    assert decide(router, build.request(PROMPT)).reason == "round-robin"


def test_a_policy_that_is_not_allowed_is_refused(build: Build) -> None:
    """The error names the header and what would be right; the pool's own is always allowed."""
    router = build.router(build.pool(2, allow_override=frozenset({"random"})))
    decide(router, build.request(headers={"tidegate-policy": "auto"}))
    refusal = refuse(router, build.request(headers={"tidegate-policy": "round-robin"}))
    assert refusal.kind is RefusalKind.BAD_REQUEST
    assert "tidegate-policy" in refusal.message
    assert refusal.message.endswith("it allows: random")


def test_what_was_learned_outlives_a_change_of_policy(build: Build) -> None:
    """A policy that is swapped in knows what requests took before."""
    router = build.router(build.pool(1, policy="random"))
    for number in range(100):
        decision = decide(router, build.request(), float(number))
        assert decision.ticket is not None
        router.settle(decision.ticket, Outcome.DONE, number + 0.5)
    router.set_pools({"llm": build.pool(1)}, 200.0)
    explained = router.explain(build.request(), 200.0, 0.0)
    assert explained["candidates"][0]["price"] == pytest.approx(0.5, rel=0.2)  # type: ignore[index]  # JSON


def test_only_requests_that_ended_well_teach(build: Build) -> None:
    """Aborted ones, and those that another replica served, say nothing about a pace."""
    router = build.router(build.pool(2))
    for number in range(60):
        lost = decide(router, build.request(), float(number))
        assert lost.ticket is not None
        router.settle(lost.ticket, Outcome.ABORTED, number + 0.9)
        moved = decide(router, build.request(), float(number))
        assert moved.ticket is not None
        ticket = router.served(moved.ticket, moved.addresses[1], number + 0.1)
        router.settle(ticket, Outcome.DONE, number + 0.9)
    explained = router.explain(build.request(), 200.0, 0.0)
    assert explained["candidates"][0]["price"] == pytest.approx(0.02)  # type: ignore[index]  # JSON


# --- Learning -----------------------------------------------------------------------------------


def test_first_bytes_of_streamed_prompts_teach_the_speed(build: Build) -> None:
    """They count once, before or after the end, and only for the replica that was picked."""
    router = build.router(build.pool(2))
    pace = router._paces["llm"]

    def answer(seconds: float, *, streaming: bool = True, who: str | None = None) -> None:
        asked = build.request(prompt=b"x" * 32_000, streaming=streaming)
        ticket = decide(router, asked).ticket
        assert ticket is not None
        key = ticket.endpoint if who is None else EndpointKey(who, 1)
        for _ in range(2):
            router.began(ticket.id, key, seconds)

    for _ in range(40):
        answer(4.0, streaming=False)
        answer(4.0, who="nobody")
    assert (pace.hears, 1 / pace.seconds_per_token) == (False, pytest.approx(8000.0))
    for _ in range(40):
        answer(4.0)
    assert pace.hears
    assert pace._heard == 40


def test_reuse_is_counted_for_known_endpoints(build: Build) -> None:
    """By their own counters, until they leave."""
    router = build.router(build.pool(1))
    for reused in (1.0, 3.0):
        readings = [Reading(at=0.0, model="m", reused_blocks=reused, kv_block_tokens=16)]
        router.observe("r0", readings)
        router.observe("stranger", readings)
    assert router.reuse.tokens() == {"r0": 32.0}
    router.set_pools({"llm": build.pool(0)}, 1.0)
    assert router.reuse.tokens() == {}
