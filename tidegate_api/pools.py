"""What a pool's settings may be, for both services: their words, bounds and units.

The fleet's models (``xds_server.fleet.model``) and the picker's conversion (``ext_proc.control``)
take these from here, so neither repeats them. Default values stand in the models and in the
picker's values; ``tests/unit/test_one_source.py`` holds them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import EnumDescriptor

PolicyName = Literal[
    "auto",
    "prefix-affinity",
    "learned",
    "least-in-flight",
    "least-request",
    "weighted-least-pending",
    "least-response-time",
    "peak-ewma",
    "p2c",
    "p2c-work",
    "p2c-drain",
    "p2c-latency",
    "prequal",
    "gpu-composite",
    "token-bucket",
    "consistent-hash",
    "consistent-hash-bounded",
    "session-sticky",
    "co-batch",
    "round-robin",
    "weighted-round-robin",
    "random",
    "weighted-random",
    "envoy",
]
POLICY_NAMES: Final[tuple[PolicyName, ...]] = get_args(PolicyName)
"""The picker's policies; ``ext_proc.routing.policies`` makes each of them."""

OUTSIDE_POLICY: Final = r"[a-z0-9-]{1,63}\.[a-z0-9-]{1,63}"
"""Names of policies of other packages: `package.policy`."""

ENVOY_POLICY: Final = "envoy"
"""The policy that leaves the choice to Envoy's own load balancing: no picker is asked."""

MAX_LISTED: Final = 9
"""Most addresses of a pick's list, the pick included: of a fleet half of which has just died they
are all dead with a probability of 1/512."""
MAX_REPEATS: Final = 16
"""Most attempts of a request after the first, for all causes; most causes allow fewer. Behind the
list Envoy draws replicas itself, so that with half of a fleet dead one request of 130,000 finds
none. It is a constant, so that no change of a pool's replicas changes routes."""

BodyMode = Literal["none", "peek", "full"]
"""How much of a request's body the picker reads."""

LEAST_PEEK_BYTES: Final = 4096
"""Least `routing.peek_bytes`: Envoy cuts no body that is shorter."""

TRITON_PATHS: Final = "/v2/"
"""Beginning of Triton's HTTP paths."""
ENGINE_READY_PATHS: Final = ("/health", "/health/ready")
"""Readiness of engines without Triton's API, which answer its readiness path with 404: vLLM, SGLang
and ``trtllm-serve``, and Triton's OpenAI server."""


def ready_paths(path: str) -> tuple[str, ...]:
    """Return where a replica tells its readiness, the first that it does not answer with 404.

    One that answers a readiness path of Triton's with 404 is no Triton, which answers 400 for
    models that it does not know.
    """
    return (path, *ENGINE_READY_PATHS) if path.startswith(TRITON_PATHS) else (path,)


MAX_VARIANTS: Final = 256
"""Most variants of a pool."""

AdapterMode = Literal["ignore", "prefer", "require"]
"""What it counts that a replica has a request's LoRA adapter loaded."""

UnsoundMode = Literal["refuse", "pass"]
"""What happens to requests that could end a replica."""

LimitMode = Literal["auto", "none"]
"""Whether the requests in flight on a replica are limited by what it can run at once."""

HungMode = Literal["move", "refuse", "wait"]
"""What becomes of a request that stands on a replica when the replica is found hung."""

CustomReading = Literal[
    "queued",
    "running",
    "reused_blocks",
    "kv_used",
    "gpu_used",
    "gpu_memory_used",
    "kv_block_tokens",
    "kv_blocks",
]
"""Fields of a reading that a fleet file may declare a series for."""

MAX_CUSTOM: Final = 32
"""Declared series of one pool."""

MAX_LOW_OBJECTIVES: Final = 1024
"""InferenceObjectives of the lower band of one pool."""

MAX_NEEDS: Final = 256
"""Entries in one pool's ``model_needs``."""

MAX_ENGINES: Final = 64
"""Engines of one replica that publish KV events."""

MIN_FACTOR: Final = 1
"""Least of ``load_factor``, ``spill_factor`` and a ``latency_factor`` that is not off."""

MAX_PERCENT: Final = 100

MAX_EXPLORE_PERCENT: Final = 2
"""Largest share of requests on which ``learned`` tries an alternative."""

MAX_WAIT_S: Final = 10.0
"""Longest time that a request waits in the picker for a replica with room, seconds."""

MAX_CO_BATCH_HOLD_MS: Final = 0.5
"""Longest time for which ``co-batch`` lets a request wait."""

MAX_WEIGHT_SUM: Final = 2**32 - 1
"""Envoy's bound on the sum of a route's cluster weights."""

DURATION_UNITS_S: Final[Mapping[str, float]] = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
"""Units of durations, as people write them, in seconds."""


def enum_numbers(enum: EnumDescriptor) -> dict[str, int]:
    """Return an enum's numbers by the fleet file's words: ``peek`` is ``BODY_MODE_PEEK``.

    The value 0, ``..._UNSPECIFIED``, has no word.
    """
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in enum.values[1:]}
