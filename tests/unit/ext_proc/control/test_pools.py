"""Conversion of the wire's pool to the router's."""

from __future__ import annotations

import math

import pytest

from ext_proc.control.fields import PoolError
from ext_proc.control.pools import (
    MAX_ENDPOINTS,
    MAX_LOG_SLOTS,
    MAX_ROLLOUT_CHARS,
    MAX_STEP,
    log_slot,
    pool_of,
)
from ext_proc.routing.values.pool import Arms, Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.settings import (
    GpuWeights,
    LearnedSettings,
    ModelNeeds,
    Outlier,
    SlowStart,
)
from tidegate_api.fleet.v1 import pool_pb2
from tidegate_api.pools import MAX_NEEDS, MAX_VARIANTS


def message(**changes):
    values = {
        "name": "llm",
        "variants": [pool_pb2.Variant(name="stable", weight=1)],
        "endpoints": [
            pool_pb2.Endpoint(id="r1", variant="stable", http_address="10.0.0.1:80", capacity=1)
        ],
    }
    return pool_pb2.Pool(**{**values, **changes})


def endpoint(**changes):
    values = {"id": "r1", "variant": "stable", "http_address": "10.0.0.1:80", "capacity": 1}
    return pool_pb2.Endpoint(**{**values, **changes})


def test_every_field():
    """Each field is converted to its place, with its unit."""
    made = pool_of(
        pool_pb2.Pool(
            name="llm",
            models=["toy-llm"],
            paths=["/v1/completions"],
            default_for=[pool_pb2.FORM_GRPC],
            default_for_paths=["/v1/completions"],
            variants=[
                pool_pb2.Variant(
                    name="stable", weight=3, model_version="2", headers={"X-B": "1", "x-a": "2"}
                )
            ],
            endpoints=[
                pool_pb2.Endpoint(
                    id="r1",
                    incarnation=4,
                    variant="stable",
                    http_address="10.0.0.1:80",
                    grpc_address="10.0.0.1:81",
                    metrics_url="http://10.0.0.1:82/metrics",
                    capacity=2,
                    zone="a",
                    draining=True,
                    joined_unix_ms=1500,
                )
            ],
            routing=pool_pb2.Routing(
                policy="round-robin",
                body=pool_pb2.BODY_MODE_FULL,
                fallbacks=1,
                refuse_deadly=True,
                hung_requests=pool_pb2.HUNG_REQUESTS_WAIT,
                move_bytes=100,
                session_header="X-S",
                block_chars=64,
                block_tokens=16,
                tokenizer="/models/llm/tokenizer.json",
                chat_template="/models/llm/chat.jinja",
                index_blocks_per_endpoint=100,
                index_ttl_seconds=5,
                sequence_idle_seconds=6,
                load_factor=2,
                max_body_bytes=1000,
                max_header_bytes=7680,
                max_inflated_bytes=2**26,
                uploads_per_client=512,
            ),
            slow_start=pool_pb2.SlowStart(window_seconds=30, aggression=2, min_weight=0.2),
            deep_health=pool_pb2.DeepHealth(repository=True),
            per_endpoint_in_flight=9,
            first_answer_seconds=70,
            first_answer_least_seconds=7,
        )
    )
    assert made == Pool(
        name="llm",
        models=frozenset({"toy-llm"}),
        paths=frozenset({"/v1/completions"}),
        default_for_grpc=True,
        default_for_paths=frozenset({"/v1/completions"}),
        variants=(Variant("stable", 3, "2", (("x-a", "2"), ("x-b", "1"))),),
        endpoints=(
            Endpoint(
                EndpointKey("r1", 4),
                "stable",
                "10.0.0.1:80",
                "10.0.0.1:81",
                "http://10.0.0.1:82/metrics",
                2.0,
                "a",
                draining=True,
                joined_unix_s=1.5,
            ),
        ),
        policy="round-robin",
        body="full",
        fallbacks=1,
        session_header="x-s",
        block_chars=64,
        block_tokens=16,
        tokenizer="/models/llm/tokenizer.json",
        chat_template="/models/llm/chat.jinja",
        index_blocks=100,
        index_ttl_s=5.0,
        sequence_idle_s=6.0,
        load_factor=2.0,
        max_body_bytes=1000,
        hung_requests="wait",
        move_bytes=100,
        slow_start=SlowStart(30.0, 2.0, 0.2),
        per_endpoint_in_flight=9,
        first_answer_s=70.0,
        first_answer_least_s=7.0,
    )


def test_defaults():
    """Omitted fields take the router's default; a warm endpoint has no join time."""
    made = pool_of(message())
    default = Pool(name="llm")
    assert (made.policy, made.body, made.block_chars) == ("auto", "peek", 256)
    assert (made.index_ttl_s, made.load_factor) == (default.index_ttl_s, default.load_factor)
    assert made.slow_start.window_s == 0
    assert made.endpoints[0].joined_unix_s is None
    assert made.endpoints[0].grpc is None


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"name": ""}, "without a name"),
        ({"name": "a/b"}, "must not contain '/'"),
        ({"variants": []}, "0 variants"),
        ({"variants": [pool_pb2.Variant(name="a")] * 2}, "a unique name"),
        ({"variants": [pool_pb2.Variant()]}, "a unique name"),
        (
            {"variants": [pool_pb2.Variant(name=str(n)) for n in range(MAX_VARIANTS + 1)]},
            f"{MAX_VARIANTS + 1} variants",
        ),
        ({"endpoints": [endpoint(id="")]}, "a unique id"),
        ({"endpoints": [endpoint()] * 2}, "not 'r1'"),
        ({"endpoints": [endpoint(variant="x")]}, "variant 'x' does not exist"),
        ({"endpoints": [endpoint(http_address="")]}, "it has no address"),
        ({"endpoints": [endpoint(http_address="a:1,b:2")]}, "comma"),
        ({"endpoints": [endpoint(capacity=-1)]}, "capacity is -1"),
        ({"endpoints": [endpoint(capacity=math.nan)]}, "capacity is nan"),
        ({"routing": pool_pb2.Routing(load_factor=0.5)}, "load_factor is 0.5"),
        ({"routing": pool_pb2.Routing(body=9)}, "body has the unknown value 9"),
        ({"slow_start": pool_pb2.SlowStart(window_seconds=math.inf)}, "slow_start.window"),
    ],
)
def test_nonsense_names_its_place(changes, place):
    """Invalid values are refused with the faulty field."""
    with pytest.raises(PoolError, match=place):
        pool_of(message(**changes))


def test_too_many_endpoints():
    """The number of endpoints is bounded."""
    many = [pool_pb2.Endpoint()] * (MAX_ENDPOINTS + 1)
    with pytest.raises(PoolError, match="at most"):
        pool_of(message(endpoints=many))


def test_rules_of_ejection_and_probes_arrive():
    """Absent rules are the defaults; in given ones 0 switches a reason off."""
    assert pool_of(message()).outlier == Outlier()
    sent = pool_pb2.Outlier(
        consecutive_failures=5,
        interval_seconds=2,
        base_ejection_seconds=3,
        max_ejection_percent=40,
        failure_percent=60,
        latency_factor=7,
        frozen_after_seconds=8,
    )
    made = pool_of(message(outlier=sent, probe_interval_seconds=9))
    assert made.outlier == Outlier(5, 2.0, 3.0, 40, 60.0, 7.0, 8.0)
    assert made.probe_interval_s == 9.0
    off = pool_of(message(outlier=pool_pb2.Outlier())).outlier
    assert off == Outlier(max_ejection_percent=0, failure_percent=0.0, frozen_after_s=0.0)
    variant = pool_pb2.Variant(name="stable", weight=1, probe_path="/v2/health/ready")
    assert pool_of(message(variants=[variant])).variants[0].probe_path == "/v2/health/ready"


@pytest.mark.parametrize(
    "changes",
    [
        {"outlier": pool_pb2.Outlier(max_ejection_percent=101)},
        {"outlier": pool_pb2.Outlier(failure_percent=100.5)},
        {"outlier": pool_pb2.Outlier(failure_percent=math.nan)},
        {"outlier": pool_pb2.Outlier(latency_factor=0.5)},
        {"outlier": pool_pb2.Outlier(base_ejection_seconds=-1)},
        {"outlier": pool_pb2.Outlier(frozen_after_seconds=math.inf)},
        {"variants": [pool_pb2.Variant(name="stable", weight=1, probe_path="ready")]},
    ],
)
def test_senseless_rules_of_ejection_are_refused(changes):
    """The error names the pool, so that the control server shows it."""
    with pytest.raises(PoolError, match="llm"):
        pool_of(message(**changes))


def test_constraints_and_settings_of_policies_arrive():
    """Needs of models, devices, adapters, zones, weights and the bandit's bounds."""
    made = pool_of(
        message(
            endpoints=[endpoint(device="a100", adapters=["fr", "de"])],
            model_needs=[
                pool_pb2.ModelNeeds(model="m", memory_bytes=5, device="a100", device_required=True)
            ],
            routing=pool_pb2.Routing(
                gpu_weights=pool_pb2.GpuWeights(queue=2, kv=1),
                learned=pool_pb2.Learned(min_decisions=2000, explore=0.02),
                co_batch_hold_seconds=0.0005,
                adapters=pool_pb2.ADAPTERS_REQUIRE,
                prefer_zone=True,
                zone_hop_seconds=0.5,
                spill_factor=2,
            ),
        )
    )
    assert made.endpoints[0].device == "a100"
    assert made.endpoints[0].adapters == {"fr", "de"}
    assert made.model_needs == (ModelNeeds("m", 5, "a100", device_required=True),)
    assert made.gpu_weights == GpuWeights(2.0, 0.0, 1.0, 0.0)
    assert made.learned == LearnedSettings(2000, 0.02)
    assert (made.co_batch_hold_s, made.adapters) == (0.0005, "require")
    assert (made.prefer_zone, made.zone_hop_s, made.spill_factor) == (True, 0.5, 2.0)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"model_needs": [pool_pb2.ModelNeeds(model="m")] * (MAX_NEEDS + 1)}, "257 model needs"),
        ({"model_needs": [pool_pb2.ModelNeeds()]}, "without a model"),
        ({"model_needs": [pool_pb2.ModelNeeds(model="m", device_required=True)]}, "names none"),
        ({"routing": pool_pb2.Routing(gpu_weights=pool_pb2.GpuWeights())}, "gpu_weights are 0"),
        (
            {"routing": pool_pb2.Routing(gpu_weights=pool_pb2.GpuWeights(kv=-1))},
            "gpu_weights.kv",
        ),
        ({"routing": pool_pb2.Routing(learned=pool_pb2.Learned(explore=0.03))}, "explore is 0.03"),
        ({"routing": pool_pb2.Routing(co_batch_hold_seconds=0.001)}, "co_batch_hold is 0.001"),
        ({"routing": pool_pb2.Routing(co_batch_hold_seconds=math.nan)}, "co_batch_hold is nan"),
        ({"routing": pool_pb2.Routing(adapters=9)}, "adapters has the unknown value 9"),
        ({"routing": pool_pb2.Routing(spill_factor=0.5)}, "spill_factor is 0.5"),
    ],
)
def test_senseless_constraints_are_refused(changes, place):
    """Each error names the field, so that the control server shows it."""
    with pytest.raises(PoolError, match=place):
        pool_of(message(**changes))


BOTH = [pool_pb2.Variant(name="v1", weight=1_900_000), pool_pb2.Variant(name="v2", weight=100_002)]


def rollout(**changes):
    values = {"rollout": "r1", "canary": "v2", "stable": "v1", "step": 1}
    return pool_pb2.Canary(**{**values, **changes})


def test_a_rollout_is_read_and_an_absent_one_is_none() -> None:
    """With the weights that a rollout draws."""
    made = pool_of(message(variants=BOTH, endpoints=[], canary=rollout()))
    assert made.canary == Arms("r1", "v2", "v1", 1)
    assert [each.weight for each in made.variants] == [1_900_000, 100_002]
    assert pool_of(message()).canary is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"canary": "v3"}, "canary.canary: variant 'v3' does not exist"),
        ({"stable": "v0"}, "canary.stable: variant 'v0' does not exist"),
        ({"canary": "", "stable": ""}, "canary.canary: variant '' does not exist"),
        ({"canary": "v1"}, "canary and stable are both 'v1'"),
        ({"rollout": ""}, "canary.rollout needs 1 to 64 characters"),
        ({"rollout": "r" * (MAX_ROLLOUT_CHARS + 1)}, "canary.rollout needs 1 to 64 characters"),
        ({"step": MAX_STEP + 1}, "canary.step is 1024; it must be at most 1023"),
    ],
)
def test_a_senseless_rollout_names_its_place(changes, words) -> None:
    """The pool is refused, so the control server shows why."""
    with pytest.raises(PoolError, match="pool 'llm': ") as raised:
        pool_of(message(variants=BOTH, endpoints=[], canary=rollout(**changes)))
    assert words in str(raised.value)


def test_the_seed_is_read_and_never_shown() -> None:
    """It is a secret, which a printed pool must not show."""
    seed = 2**64 - 59
    pool = pool_of(message(seed=seed))
    assert pool.seed == seed
    assert str(seed) not in repr(pool)


@pytest.mark.parametrize(
    ("slots", "slot"),
    [
        ((), None),
        (("", "10.0.0.1:1"), 1),
        (("10.0.0.2:1", "10.0.0.1:1"), 1),
        (("10.0.0.2:1", "", "10.0.0.3:1"), None),
        (("", "0.0.0.0:1"), 1),
        (("", "10.0.0.9:1"), 1),
    ],
)
def test_a_picker_finds_its_log_slot_by_its_address(slots, slot):
    """The only picker of a fleet need not know its address."""
    pools = [pool_of(message(log_slots=slots))]
    assert log_slot(pools, "10.0.0.1:1") == slot
    assert log_slot([], "10.0.0.1:1") is None


def test_log_slots_are_bounded():
    """A list that no fleet needs is refused."""
    with pytest.raises(PoolError, match="log_slots"):
        pool_of(message(log_slots=["x:1"] * (MAX_LOG_SLOTS + 1)))
