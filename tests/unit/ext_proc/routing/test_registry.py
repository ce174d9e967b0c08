"""The endpoint registry: pools and replicas that are added, changed and removed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from ext_proc.routing.cache.index_events import Reporting
from ext_proc.routing.values.reading import Reading
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Features, Form
from ext_proc.routing.values.settings import SlowStart
from ext_proc.routing.values.ticket import Outcome
from support.routing import PROMPT, decide, end

if TYPE_CHECKING:
    from ext_proc.routing.router import Router

    from .conftest import Build


# --- Membership ---------------------------------------------------------------------------------


def test_an_endpoint_gone_from_all_pools_is_forgotten(build: Build) -> None:
    """Its tickets settle once and its blocks are dropped; one that another pool lists stays."""
    pool = build.pool(1)
    other = build.pool(1, name="other", models=frozenset({"n"}))
    router = build.router(pool, other)
    decision = decide(router, build.request((1, 2)))
    assert decision.ticket is not None
    router.set_pools({"other": other}, 1.0)
    assert router.registry.in_flight() == {"r0": 1}
    router.set_pools({}, 1.0)
    assert router.registry.in_flight() == {}
    assert router.index.match_all((1, 2)) == {}
    assert not router.settle(decision.ticket, Outcome.DONE, 1.0)
    assert router.ledger.outcomes == {Outcome.REMOVED: 1}


def test_a_change_of_policy_keeps_ledger_and_index(build: Build) -> None:
    """Requests in flight and cached blocks are kept across a hot reload."""
    router = build.router(build.pool(2))
    decide(router, build.request(PROMPT))
    router.set_pools({"llm": build.pool(2, policy="round-robin")}, 1.0)
    assert sum(router.registry.in_flight().values()) == 1
    decision = decide(router, build.request(PROMPT))
    assert decision.reason == "round-robin"
    router.set_pools({"llm": build.pool(2)}, 1.0)
    assert decide(router, build.request(PROMPT)).reason == "prefix"


def test_a_change_elsewhere_keeps_the_cursor(build: Build) -> None:
    """Round-robin continues at its cursor when only weights or limits changed."""
    router = build.router(build.pool(3, policy="round-robin"))
    first = decide(router, build.request()).addresses[0]
    router.set_pools({"llm": build.pool(3, policy="round-robin", fallbacks=0)}, 1.0)
    rest = {decide(router, build.request()).addresses[0] for _ in range(2)}
    assert len(rest | {first}) == 3


def test_an_unknown_policy_changes_nothing(build: Build) -> None:
    """A bad pool raises one clear error, and the present pools stay in force."""
    router = build.router(build.pool(2))
    decide(router, build.request())
    with pytest.raises(ValueError, match="unknown policy 'magic'"):
        router.set_pools({"llm": build.pool(0, policy="magic")}, 1.0)
    assert sum(router.registry.in_flight().values()) == 1
    assert len(decide(router, build.request()).addresses) == 2


def test_a_restart_empties_cache_and_leases_and_ramps_again(build: Build) -> None:
    """After a restart the replica matches nothing, holds no sequence, and ramps up again."""
    router = build.router(build.pool(1, slow_start=SlowStart(100.0)))
    decide(router, build.request((1, 2), sequence_id=5))
    router.registry.restarted("unknown", 1000.0)
    assert len(router.leases) == 1
    router.registry.restarted("r0", 1000.0)
    decision = decide(router, build.request((1, 2), sequence_id=5), 0.0, 1010.0)
    assert (decision.matched_blocks, decision.reason) == (0, "least")
    older = build.endpoint(0, joined_unix_s=900.0)
    pool = build.pool(
        endpoints=(older, build.endpoint(1)), slow_start=SlowStart(100.0), policy="least-in-flight"
    )
    router.set_pools({"llm": pool}, 1.0)
    picks = Counter(decide(router, build.request(), 1.0, 1010.0).addresses[0] for _ in range(500))
    assert picks["10.0.0.0:8000"] / 500 == pytest.approx(0.1 / 1.1, abs=0.04)


# --- The size of a replica's cache --------------------------------------------------------------


def sized(blocks: int | None) -> tuple[Reading, ...]:
    """Return a page of an engine with blocks of 64 tokens."""
    return (Reading(at=0.0, model="m", kv_blocks=blocks, kv_block_tokens=64),)


def test_the_index_believes_as_much_as_the_page_says(build: Build) -> None:
    """A prompt that no longer fits beside later ones is not predicted any more."""
    router = build.router(build.pool(1))
    router.registry.observe("r0", sized(20))
    key = build.pool(1).endpoints[0].key
    for number in range(3):
        end(router, decide(router, build.request(tuple(range(number * 10, number * 10 + 10)))))
    assert router.index.held(key) <= 20
    assert router.index.table.matched(tuple(range(10)), key) == 0
    assert router.index.table.matched(tuple(range(20, 30)), key) == 10


def test_the_size_that_was_told_outlives_pools_and_silence(build: Build) -> None:
    """A change of the pools or a page without the size does not restore the setting."""
    router = build.router(build.pool(1))
    key = build.pool(1).endpoints[0].key
    router.registry.observe("r0", sized(2_000))
    router.registry.observe("r0", sized(None))
    router.registry.observe("r0", ())
    router.set_pools({"llm": build.pool(1, policy="round-robin")}, 1.0)
    assert router.index.bound(key) == 2_000


def test_engines_that_report_their_blocks_are_not_bounded_by_their_page(build: Build) -> None:
    """What an engine reports is held, however it counts its blocks; afterwards its page holds."""
    router = build.router(build.pool(1))
    key = build.pool(1).endpoints[0].key
    router.registry.observe("r0", sized(20))
    router.registry.cached(Reporting(key, complete=True))
    assert router.index.bound(key) == 100_000
    router.registry.cached(Reporting(key, complete=None))
    assert router.index.bound(key) == 20


def placed(router: Router, build: Build) -> dict[int, str]:
    """Route one turn of each of two hundred conversations; return their addresses."""
    places = {}
    for number in range(200):
        blocks = tuple(1_000 * number + depth for depth in range(4))
        decision = decide(router, build.request(blocks))
        places[number] = decision.addresses[0]
        end(router, decision)
    return places


def test_membership_changes_move_no_other_conversation(build: Build) -> None:
    """A new replica moves no conversation; a removed one moves only its own."""
    router = build.router(build.pool(4))
    before = placed(router, build)
    router.set_pools({"llm": build.pool(5)}, 1.0)
    assert placed(router, build) == before
    router.set_pools({"llm": build.pool(3)}, 2.0)
    after = placed(router, build)
    for number, address in before.items():
        assert address == "10.0.0.3:8000" or after[number] == address


# --- Pool of a request --------------------------------------------------------------------------


CHAT = "/v1/chat/completions"


def test_a_pool_of_paths_takes_the_models_that_no_other_has_there(build: Build) -> None:
    """A model may be in several pools that paths tell apart, and a pool may name paths alone."""
    router = build.router(
        build.pool(name="chats", models=frozenset(), paths=frozenset({CHAT})),
        build.pool(name="exact", models=frozenset({"m"}), paths=frozenset({"/v1/completions"})),
        build.pool(name="other", models=frozenset({"m", "n"}), paths=frozenset({"/v1/embeddings"})),
        build.pool(name="own", models=frozenset({"o"}), paths=frozenset({CHAT})),
    )

    def found(path: str, model: str) -> str | RefusalKind:
        answer = router.registry.pool_for(Features(Form.OPENAI, model=model), path, "http")
        return answer.kind if isinstance(answer, Refusal) else answer

    assert [found(path, "m") for path in (CHAT, "/v1/completions", "/v1/embeddings")] == [
        "chats",
        "exact",
        "other",
    ]
    assert found(CHAT, "o") == "own"
    assert found("/v1/completions", "n") is RefusalKind.UNKNOWN_MODEL


def test_the_default_pool_for_http_takes_what_no_path_assigns(build: Build) -> None:
    """Without models of its own it takes every model, but not on the paths of others."""
    named = build.pool(name="a", models=frozenset({"m"}), paths=frozenset({CHAT}))
    any_model = build.pool(
        name="b", models=frozenset(), paths=frozenset({"/b"}), default_for_http=True
    )
    router = build.router(named, any_model)

    def found(path: str, protocol: str = "http", **features: str) -> str | RefusalKind:
        answer = router.registry.pool_for(Features(Form.OPENAI, **features), path, protocol)
        return answer.kind if isinstance(answer, Refusal) else answer

    assert found("/v1/embeddings") == "b"
    assert found("/v1/embeddings", model="zzz") == "b"
    assert found("/v1/embeddings", model="m") == "a"
    assert found(CHAT, model="zzz") is RefusalKind.UNKNOWN_MODEL
    assert found(CHAT) is RefusalKind.UNKNOWN_MODEL
    assert found("/x", "grpc", model="zzz") is RefusalKind.UNKNOWN_MODEL
    assert found("/x", "grpc") is RefusalKind.UNKNOWN_MODEL


def test_the_pool_is_found_by_header_model_path_or_default(build: Build) -> None:
    """The header is read first, then the model, then the default of the form."""
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

    def found(path: str, protocol: str = "http", **features: str) -> str | RefusalKind:
        answer = router.registry.pool_for(Features(Form.OPENAI, **features), path, protocol)
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
