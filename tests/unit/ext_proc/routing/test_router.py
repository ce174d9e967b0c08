"""The request router: one request in, an ordered choice or a refusal out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.routing.cache.index_events import Inserted, Purged
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.pipeline.scheduler import Decision
from ext_proc.routing.state.ledger import Charged, EndpointRemoved, Ledger, Settled
from ext_proc.routing.values.pool import Endpoint, EndpointKey
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Form
from ext_proc.routing.values.ticket import Outcome
from support.routing import decide, end, refuse

if TYPE_CHECKING:
    from .conftest import Build


# --- Choice -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replicas", "fallbacks", "listed"),
    [(1, 2, 1), (4, 2, 4), (9, 1, 9), (20, 2, 9), (64, 8, 9), (4, 0, 1)],
)
def test_a_list_is_long_enough_for_half_of_a_fleet(
    build: Build, replicas: int, fallbacks: int, listed: int
) -> None:
    """It has up to nine different replicas, whatever declined requests may do."""
    router = build.router(build.pool(replicas, fallbacks=fallbacks))
    for form in (Form.HTTP_INFER, Form.OTHER):
        decision = decide(router, build.request((1, 2), form=form))
        assert len(set(decision.addresses)) == len(decision.addresses) == listed


def spread(count: int, hosts: int, zones: int) -> tuple[Endpoint, ...]:
    """Return replicas that share hosts, which share zones."""
    return tuple(
        Endpoint(
            EndpointKey(f"r{number}", 1),
            "stable",
            http=f"10.0.0.{number % hosts}:{8000 + number}",
            grpc=None,
            zone=f"z{number % hosts % zones}",
        )
        for number in range(count)
    )


@pytest.mark.parametrize(
    ("count", "hosts", "zones"), [(8, 2, 1), (32, 4, 2), (12, 3, 3), (60, 5, 2)]
)
def test_a_list_mixes_what_fails_together(build: Build, count: int, hosts: int, zones: int) -> None:
    """No host comes again before all others, and the next replica is in another zone."""
    router = build.router(build.pool(endpoints=spread(count, hosts, zones)))
    for _ in range(20):
        addresses = decide(router, build.request()).addresses
        found = [each.partition(":")[0] for each in addresses]
        if count <= 32:  # else they are a sample
            assert len(set(found[:hosts])) == min(hosts, len(found))
        assert len(set(found[:2])) == 2
        numbers = [int(each.rpartition(".")[2]) % zones for each in found]
        assert zones == 1 or count > 32 or numbers[0] != numbers[1]


def test_a_list_has_the_newest_evidence_of_life_first(build: Build) -> None:
    """A replica whose latest sign was a failed connection is tried last, until it answers."""
    router = build.router(build.pool(4))
    for number, at in ((1, 1.0), (2, 2.0)):
        router.conditions.bad("llm", EndpointKey(f"r{number}", 1), at, answered=False)
    decision = router.decide(build.request(), 3.0, 0.0)
    last = [each.rpartition(".")[2].partition(":")[0] for each in decision.addresses[1:]][-2:]
    assert last == [each for each in "12" if each in last]
    assert decision.addresses[0] in {f"10.0.0.{n}:8000" for n in range(4)}
    router.conditions.good("llm", EndpointKey("r2", 1), None, 4.0)
    assert router.conditions.failed == {EndpointKey("r1", 1): 1.0}
    router.conditions.alive(EndpointKey("r1", 1), 5.0)
    assert router.conditions.failed == {}


def test_the_protocol_chooses_the_address(build: Build) -> None:
    """A gRPC request gets a gRPC address, and both protocols share the replica's load."""
    router = build.router(build.pool(1))
    assert decide(router, build.request(protocol="grpc")).addresses == ("10.0.0.0:8001",)
    assert decide(router, build.request(protocol="http")).addresses == ("10.0.0.0:8000",)
    assert router.registry.in_flight() == {"r0": 2}


def test_a_prompt_that_its_engine_computes_anew_is_no_hit(build: Build) -> None:
    """It is work wherever it goes, and leaves its blocks there as any other prompt."""
    router = build.router(build.pool(4))
    end(router, decide(router, build.request((1, 2, 3))))
    again = decide(router, build.request((1, 2, 3), prompt=b"x" * 768, recomputed=True))
    assert again.ticket is not None
    assert (again.matched_blocks, again.ticket.work) == (0, 192.0)
    end(router, again)
    assert decide(router, build.request((1, 2, 3))).matched_blocks == 3


def test_a_conversation_stays_where_its_prefix_is(build: Build) -> None:
    """Each turn goes to the replica of the previous turn, and only the new part is work."""
    router = build.router(build.pool(8))
    first = decide(router, build.request((1, 2, 3)))
    end(router, first)
    second = decide(router, build.request((1, 2, 3, 4)))
    assert second.addresses[0] == first.addresses[0]
    assert (second.reason, second.matched_blocks) == ("prefix", 3)
    assert second.ticket is not None
    assert second.ticket.work == 64.0


def test_conversations_behind_one_system_prompt_spread(build: Build) -> None:
    """A thousand conversations that share their first blocks spread over the replicas."""
    router = build.router(build.pool(8))
    prompt = (0, 1, 2)
    picks: Counter[str] = Counter()
    for number in range(1_000):
        own = tuple(1_000 * (number + 1) + depth for depth in range(6))
        decision = decide(router, build.request(prompt + own), number * 0.01)
        picks[decision.addresses[0]] += 1
        end(router, decision)
    assert max(picks.values()) / (1_000 / 8) < 1.3


def test_a_hot_prefix_spills_over_its_bound(build: Build) -> None:
    """A prompt that is in flight many times is spread within the load bound."""
    router = build.router(build.pool(4, load_factor=1.25))
    reasons = Counter(decide(router, build.request((1, 2, 3, 4))).reason for _ in range(80))
    assert reasons["prefix"] > 0
    assert max(router.registry.in_flight().values()) <= 26


def test_other_requests_leave_no_trace(build: Build) -> None:
    """A non-inference request goes to the least loaded replica, with no ticket, block or lease."""
    router = build.router(build.pool(2))
    busy = decide(router, build.request())
    for _ in range(5):
        decision = decide(router, build.request((1,), form=Form.OTHER, sequence_id=7))
        assert decision.ticket is None
        assert decision.reason == "other"
        assert decision.addresses[0] != busy.addresses[0]
    assert (len(router.ledger), router.index.blocks, len(router.leases)) == (1, 0, 0)


def test_the_queue_of_others_counts_while_fresh(build: Build) -> None:
    """A replica that other clients keep busy is avoided until its reading is stale."""
    router = build.router(build.pool(2, policy="least-in-flight"))
    router.registry.observe("r0", [Reading(at=10.0, model="m", queued=5.0)])
    router.registry.observe("unknown", [Reading(at=10.0, queued=5.0)])
    for _ in range(4):
        assert decide(router, build.request(), 11.0).addresses[0] == "10.0.0.1:8000"
    assert decide(router, build.request(), 12.0).addresses[0] == "10.0.0.0:8000"


def test_a_replica_that_fell_silent_is_chosen_last(build: Build) -> None:
    """A silent replica is the last fallback even if it holds the prompt, until a reading."""
    router = build.router(build.pool(2))
    home = decide(router, build.request((1, 2, 3)))
    end(router, home)
    name = "r0" if home.addresses[0] == "10.0.0.0:8000" else "r1"
    router.registry.observe(name, [Reading(at=1.0, queued=0.0)])
    router.registry.silent(name)
    away = decide(router, build.request((1, 2, 3)), 1.0)
    assert away.addresses == (home.addresses[1], home.addresses[0])
    end(router, away)
    router.registry.observe(name, [Reading(at=2.0, queued=0.0)])
    back = {decide(router, build.request((1, 2, 3)), 2.0).addresses[0] for _ in range(2)}
    assert home.addresses[0] in back


@pytest.mark.parametrize(("page", "silent"), [("http://10.0.0.0:8002/metrics", 1), (None, 0)])
def test_a_replica_whose_page_left_the_fleet_is_silent_no_more(
    build: Build, page: str | None, silent: int
) -> None:
    """No reading could end it."""
    endpoints = (build.endpoint(0, metrics_url="http://10.0.0.0:8002/metrics"), build.endpoint(1))
    router = build.router(build.pool(endpoints=endpoints))
    router.registry.observe("r0", [Reading(at=1.0, queued=0.0)])
    router.registry.silent("r0")
    changed = build.pool(endpoints=(build.endpoint(0, metrics_url=page), endpoints[1]))
    router.set_pools({changed.name: changed}, 2.0)
    assert [each.silent for each in router.registry.members.values()] == [silent, False]


def test_a_replica_that_never_spoke_is_not_silent(build: Build) -> None:
    """A replica whose metrics port was never reached is chosen like any other."""
    router = build.router(build.pool(1))
    router.registry.silent("r0")
    assert decide(router, build.request()).addresses == ("10.0.0.0:8000",)
    spread = build.router(build.pool(2))
    spread.registry.silent("r0")
    picks = {decide(spread, build.request()).addresses[0] for _ in range(2)}
    assert len(picks) == 2


# --- Variants -----------------------------------------------------------------------------------


def test_the_router_draws_a_variant_where_the_route_drew_none(build: Build) -> None:
    """Shares follow the weights, and the address belongs to the drawn variant."""
    router = build.canaried()
    drawn = Counter(decide(router, build.request()).variant for _ in range(2_000))
    assert drawn["canary"] / 2_000 == pytest.approx(0.25, abs=0.04)
    assert decide(router, build.request(variant="canary")).addresses == ("10.0.0.1:8000",)


def test_pins_override_what_the_route_drew(build: Build) -> None:
    """Version and header override Envoy's draw; an unknown version is refused."""
    router = build.canaried()
    assert decide(router, build.request(variant="stable", version="2")).variant == "canary"
    pinned = build.request(variant="stable", headers={"x-canary": "yes"})
    assert decide(router, pinned).variant == "canary"
    assert refuse(router, build.request(version="9")).kind is RefusalKind.UNKNOWN_VERSION


# --- Refusals -----------------------------------------------------------------------------------


def test_an_unknown_pool_is_refused(build: Build) -> None:
    """The refusal of an unknown pool names it."""
    refusal = refuse(build.router(), build.request())
    assert refusal == Refusal(RefusalKind.UNKNOWN_POOL, "no pool is named 'llm'")


def test_all_at_their_limit_is_429_until_one_settles(build: Build) -> None:
    """At the in-flight limit inference is refused, and non-inference requests still pass."""
    router = build.router(build.pool(2, per_endpoint_in_flight=1))
    first, second = decide(router, build.request()), decide(router, build.request())
    assert first.addresses[0] != second.addresses[0]
    assert refuse(router, build.request()).kind is RefusalKind.SATURATED
    assert decide(router, build.request(form=Form.OTHER)).ticket is None
    end(router, first)
    assert decide(router, build.request()).addresses == first.addresses[:1]


def test_a_refusal_changes_nothing(build: Build) -> None:
    """A refused request leaves no ticket, no block and no lease."""
    router = build.router(build.pool(1))
    refuse(router, build.request((1, 2), subset=frozenset({"10.9.9.9"}), sequence_id=1))
    assert (len(router.ledger), router.index.blocks, len(router.leases)) == (0, 0, 0)


def test_beyond_the_bound_of_tickets_requests_go_uncounted(build: Build) -> None:
    """With a full ledger a request is routed without being counted."""
    router = build.router(build.pool(1), max_tickets=1)
    assert decide(router, build.request()).ticket is not None
    assert decide(router, build.request()).ticket is None
    assert router.ledger.overflowed == 1


# --- Events and invariants ----------------------------------------------------------------------


def test_a_follower_of_the_events_holds_the_same_state(build: Build) -> None:
    """Ledger and index can be rebuilt from the events passed to ``on_event``."""
    events: list[object] = []
    router = build.router(build.pool(3), on_event=events.append)
    decisions = [decide(router, build.request((1, number)), float(number)) for number in range(9)]
    end(router, decisions[0])
    router.registry.restarted("r1", 0.0)
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


def test_repr_says_what_it_routes(build: Build) -> None:
    """The repr shows pools, open tickets and index."""
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
    """Counts balance after any order of requests, settles, new pools, drains and restarts."""
    router = build.router(build.pool(3))
    members, decisions = 3, []
    for now, step in enumerate(steps):
        if step[0] == "decide":
            _, prompt, sequence = step
            request = build.request(tuple(range(prompt)), sequence_id=sequence)
            answer = router.decide(request, float(now), float(now))
            assert isinstance(answer, Decision) or answer.kind is RefusalKind.NO_ENDPOINTS
            if isinstance(answer, Decision):
                assert answer.repeatable == (sequence is None)
                assert answer.retriable or sequence is not None
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
            router.registry.restarted(f"r{step[1]}", float(now))
        loads = router.registry.in_flight()
        assert set(loads) == {f"r{number}" for number in range(members)}
        assert sum(loads.values()) == len(router.ledger)
        assert min(loads.values(), default=0) >= 0


def test_first_bytes_of_the_latest_requests_teach(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound the oldest request is forgotten, and each tells one first byte."""
    monkeypatch.setattr("ext_proc.routing.learner.MAX_PENDING", 2)
    router = build.router(build.pool(1))
    tickets = [
        decide(router, build.request((at,), prompt=b"x" * 64, streaming=True), float(at)).ticket
        for at in (1, 2, 3)
    ]
    told = []
    for ticket in tickets:
        assert ticket is not None
        router.learner.began(ticket.id, ticket.endpoint, 0.5)
        told.append(router.learner.models["llm"].reported_until)
    assert told == [float("-inf"), 2.0, 3.0]


def test_the_scale_of_a_text_sets_the_bound_of_the_index_and_its_work(build: Build) -> None:
    """Where a byte has four tokens a cache holds a sixteenth of the blocks, and speeds are kept."""
    router = build.router(build.pool(1, index_blocks=2_000))
    cache = {"kv_blocks": 1_000, "kv_block_tokens": 64}

    def page(prompts: float, tokens: float, at: float) -> None:
        reading = Reading(at, "m", prompt_tokens=tokens, prompts=prompts, **cache)
        router.registry.observe("r0", [reading])

    key = EndpointKey("r0", 1)
    page(0.0, 0.0, 0.0)
    assert router.index.bound(key) == 1_000
    for number in range(300):
        blocks = tuple(range(1_000 * number, 1_000 * number + 8))
        decision = decide(router, build.request(blocks, prompt=b"x" * 2048, streaming=True))
        assert decision.ticket is not None
        router.confirmed(decision.ticket.id, decision.ticket.endpoint)
        router.learner.began(decision.ticket.id, decision.ticket.endpoint, 0.5)
        end(router, decision)
    before = router.learner.models["llm"].seconds_per_token
    page(300.0, 300.0 * 8192.0, 1.0)
    scale = router.scales.of("llm", None)
    assert scale == pytest.approx(0.25, rel=0.05)
    assert router.index.bound(key) == pytest.approx(63, abs=3)
    after = router.learner.models["llm"].seconds_per_token
    assert after == pytest.approx(before * scale / 4.0, rel=0.01)
    state = router.state(1.0)["pools"]["llm"]  # type: ignore[index] # ready for JSON
    assert state["text"]["bytes_per_token"] == round(scale, 3)


def test_a_batch_goes_where_most_of_its_prompts_are(build: Build) -> None:
    """Each prompt is matched by its own prefix, and what they share is computed once."""
    router = build.router(build.pool(4))
    first = decide(router, build.request((1, 2, 3)))
    end(router, first)
    key = EndpointKey(first.scores[0][0], 1) if first.ticket is None else first.ticket.endpoint
    batch = ((7, 8), (1, 2, 3, 4), (7, 9))
    blocks = (7, 8, 1, 2, 3, 4, 9)
    made = decide(router, build.request(blocks, prompt=b"x" * 2048, batch=batch))
    assert made.ticket is not None
    assert (made.ticket.endpoint, made.matched_blocks) == (key, 4)
    assert made.ticket.work == 512.0 - 4 * 64.0
    end(router, made)
    for chain in batch:
        assert router.index.table.matched(chain, key) == len(chain)


def test_a_change_of_scale_spoils_no_speed(build: Build) -> None:
    """Tokens of the earlier scale are converted; the speed stays true."""
    router = build.router(build.pool(1))
    reading = {"at": 0.0, "model": "m"}
    router.registry.observe("r0", [Reading(**reading, prompt_tokens=0.0, prompts=0.0)])
    tokens, now = 0.0, 0.0

    def ask(number: int) -> None:
        nonlocal tokens
        blocks = tuple(range(1_000 * number, 1_000 * number + 8 + number % 8))
        size = 256 * len(blocks)
        scale = router.scales.of("llm", None)
        request = build.request(blocks, prompt=b"x" * size, streaming=True)
        request.bytes_per_token, request.block_tokens = scale, 256 / scale
        open_.append((decide(router, request, now), size / 0.4 / 8_000.0))
        tokens += size / 0.4

    open_: list[tuple[Decision, float]] = []
    for number in range(400):
        now += 10.0
        ask(number)
        if len(open_) > 6:
            decision, seconds = open_.pop(0)
            assert decision.ticket is not None
            router.confirmed(decision.ticket.id, decision.ticket.endpoint)
            router.learner.began(decision.ticket.id, decision.ticket.endpoint, seconds)
            end(router, decision)
        counted = Reading(now, "m", prompt_tokens=tokens, prompts=number + 1.0)
        router.registry.observe("r0", [counted])
    assert router.scales.of("llm", None) == pytest.approx(0.4, rel=0.1)
    assert 1.0 / router.learner.models["llm"].seconds_per_token == pytest.approx(8_000, rel=0.25)
