"""Settings of a pool's routing: policies and their settings, the needs of models."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tidegate_api.names import SESSION_HEADER
from tidegate_api.pools import (
    LEAST_PEEK_BYTES,
    MAX_CO_BATCH_HOLD_MS,
    MAX_EXPLORE_PERCENT,
    MAX_LOW_OBJECTIVES,
    MAX_WAIT_S,
    MIN_FACTOR,
    OUTSIDE_POLICY,
    POLICY_NAMES,
    AdapterMode,
    BodyMode,
    HungMode,
    LimitMode,
    PolicyName,
    UnsoundMode,
)
from xds_server.fleet.model.fields import (
    Duration,
    FilePath,
    HeaderName,
    Label,
    ModelName,
    Strict,
)

__all__ = ["GpuWeightsSpec", "LearnedSpec", "ModelNeedsSpec", "PolicyName", "Routing"]


def _any_policy(value: Any, named: ValidatorFunctionWrapHandler) -> Any:
    """Take a policy of another package, which only pickers have, by the form of its name."""
    if isinstance(value, str) and re.fullmatch(OUTSIDE_POLICY, value):
        return value
    return named(value)


AnyPolicy = Annotated[
    PolicyName,
    WrapValidator(_any_policy),
    PlainSerializer(str),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(POLICY_NAMES), "type": "string"},
                {"pattern": f"^{OUTSIDE_POLICY}$", "type": "string"},
            ]
        }
    ),
]
Share = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class ModelNeedsSpec(Strict):
    """What one of the pool's models needs of a replica."""

    model: ModelName
    """One of the pool's `match.models`."""
    memory_mib: Annotated[int, Field(ge=0, le=2**31)] = 0
    """GPU memory (MiB) that must be free on a replica that has not loaded it; 0 = not looked at.
    Unknown memory excludes no replica."""
    device: Label = ""
    """The `device` of the replicas that it wants; empty = any."""
    device_required: bool = False
    """Other devices are never used; otherwise only where the wanted ones have too much to do."""


class GpuWeightsSpec(Strict):
    """Weights of the policy `gpu-composite`; only their ratios count."""

    queue: Share = 0.4
    """Of the requests that are pending on a replica."""
    gpu: Share = 0.3
    """Of the time in which its GPUs are busy."""
    kv: Share = 0.2
    """Of its KV cache in use."""
    latency: Share = 0.1
    """Of how long its requests take."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.queue + self.gpu + self.kv + self.latency == 0:
            raise PydanticCustomError(
                "weights", "all weights are 0; give at least one of queue, gpu, kv, latency", {}
            )
        return self


class LearnedSpec(Strict):
    """When the policy `learned` may act, and how much it tries out."""

    min_decisions: Annotated[int, Field(ge=1000, le=10_000_000)] = 10_000
    """Finished requests between two judgements of what it would have done."""
    explore_percent: Annotated[float, Field(ge=0, le=MAX_EXPLORE_PERCENT)] = 1.0
    """Share of requests on which it tries an alternative. With 0 it can never be judged, so it
    stays in the shadow of `auto`."""


class Routing(Strict):
    """How the picker chooses."""

    policy: AnyPolicy = "auto"
    """How the picker prices replicas; docs/reference/policies.md says which is for what."""
    allow_override: Annotated[tuple[AnyPolicy, ...], Field(max_length=32)] = ()
    """Policies that a request may ask for with the header `tidegate-policy`, where
    `listener.client_headers` lists it."""
    body: BodyMode = "peek"
    """How much of a request's body the picker reads: nothing, a bounded first part, or all."""
    first_message: Literal["auto", "none", "duplex"] = "auto"
    """How a gRPC stream (ModelStreamInfer) is routed: by its headers alone (`none`), or by its
    first message, with every message going through the picker (`duplex`): then a stream breaks with
    its picker. `auto`: where gRPC serves several models, Envoy reads the model of the first message
    and the picker no message, but of compressed streams, which are `duplex`; else `none`."""
    fallbacks: Annotated[int, Field(ge=0, le=8)] = 2
    """How often a request that replicas decline (503) goes to another one. 0: the pick has no
    fallbacks, and no request is repeated more than once; else requests that reached no replica, or
    one without their model, go on along a list of up to 8 fallbacks."""
    retry_read: Annotated[int, Field(ge=0, le=1)] = 1
    """Further replicas that may read a request after the one that had read it broke off without an
    answer; 0 for sequences, whatever is set here. Refused connections do not count."""
    session_header: HeaderName = SESSION_HEADER
    """Requests of one session draw the same variant."""
    block_chars: Annotated[int, Field(ge=16, le=65_536)] = 256
    """Characters of prompt in one prefix block."""
    block_tokens: Annotated[int, Field(ge=4, le=16_384)] = 64
    """The same in tokens, where a request carries token ids or the pool has a `tokenizer`."""
    tokenizer: FilePath | None = None
    """The model's Hugging Face `tokenizer.json`, as the pickers see it: prompts are cut into blocks
    by their exact tokens. If omitted, by characters, which costs less."""
    chat_template: FilePath | None = None
    """The model's chat template, or the `tokenizer_config.json` that has it, as the pickers see it:
    chats then have the tokens that engines compute. Needs `tokenizer`; `body` is then `full`."""
    index_blocks: Annotated[int, Field(ge=16, le=10_000_000)] = 100_000
    """Maximum blocks of an endpoint in the prefix index. A smaller KV cache whose size the
    endpoint's page tells is the bound instead."""
    index_ttl: Duration = 600.0
    """A prefix unused for so long is forgotten. Where the endpoint's page tells the size of its KV
    cache, one of 600 s or more does not count: prefixes make room for others there."""
    sequence_idle: Duration = 60.0
    """A sequence keeps its replica for so long after its last request; at least Triton's
    `max_sequence_idle_microseconds`."""
    load_factor: Annotated[float, Field(ge=MIN_FACTOR, le=100)] = 1.5
    """The cached replica is chosen while its load is at most this factor above the mean."""
    gpu_weights: GpuWeightsSpec = GpuWeightsSpec()
    """Weights of the policy `gpu-composite`."""
    learned: LearnedSpec = LearnedSpec()
    """Settings of the policy `learned`."""
    co_batch_hold_ms: Annotated[float, Field(ge=0, le=MAX_CO_BATCH_HOLD_MS)] = 0.0
    """Policy `co-batch`: longest time for which a request waits for companions, where the rate
    makes one likely; 0 = none waits."""
    adapters: AdapterMode = "prefer"
    """Whether replicas that have a request's LoRA adapter loaded are preferred or required."""
    prefer_zone: bool = False
    """Replicas of the picker's own zone (its `--zone`) are preferred: with `auto` the others cost
    `zone_hop` more, with other policies as `spill_factor` says."""
    zone_hop: Duration = 0.0
    """What a pick in another zone costs, in seconds that a request would rather wait: more than the
    round trip where that traffic costs money. 0 = the measured difference of round trips."""
    spill_factor: Annotated[float, Field(ge=MIN_FACTOR, le=100)] = 1.5
    """A preferred replica (adapter, device, zone) is kept to while its requests in flight are at
    most this factor above the mean."""
    peek_bytes: Annotated[int, Field(ge=LEAST_PEEK_BYTES, le=16 * 2**20)] = 65_536
    """In body mode `peek`: about how much of a body the picker reads, and the largest body that
    Envoy can send again to another replica."""
    max_body: Annotated[int, Field(ge=1024, le=256 * 2**20)] = 4 * 2**20
    """Bytes; in body mode `full` a larger request is refused with 413."""
    refuse_deadly: bool = True
    """Requests that several replicas died with run one at a time, and the one that is to blame is
    refused with 422 for a minute; docs/explanation/deadly-requests.md says when."""
    hung_requests: HungMode = "move"
    """What becomes of requests that stand unanswered on a replica when it is found frozen: another
    replica gets them if they may be repeated (`retry_read`) and the others are answered 503, all
    are, or they wait for `timeouts.first_answer`; docs/explanation/retries.md says when."""
    unsound_requests: UnsoundMode = "refuse"
    """Whether requests whose tensors' shapes contradict their data, or whose JSON nests too deeply,
    are refused with 400: they can end Triton."""
    max_tensor_bytes: Annotated[int, Field(ge=1024, le=2**62)] = 2**31
    """With `unsound_requests: refuse`, the most bytes that the shape of one input may declare."""
    max_header_bytes: Annotated[int, Field(ge=0, le=65_536)] = 7680
    """Requests under `/v2` whose headers are longer are refused with 431: Triton closes connections
    at 8,190 bytes, with what Envoy adds. Below 4,096 counts as 4,096; 0 = no limit."""
    max_inflated_bytes: Annotated[int, Field(ge=0, le=2**40)] = 2**26
    """KServe requests whose compressed body Triton would inflate to more are refused with 413: it
    inflates without a bound. Of what the picker has not read each byte counts as 1032. 0 = no
    limit."""
    uploads_per_client: Annotated[int, Field(ge=0, le=2**31)] = 512
    """Uploads that one client (address, /64 or certificate) may have under way at one picker
    process, further ones are refused with 429: those whose end the picker has not seen. With
    `body: none` none count; 0 = no limit."""
    limit: LimitMode = "auto"
    """Whether a replica gets no more requests for a model than it can run at once and the next ones
    to run, as it tells or as was learned; `circuit_breaker.per_endpoint_in_flight` overrides it."""
    max_wait: Annotated[Duration, Field(le=MAX_WAIT_S)] = MAX_WAIT_S
    """How long a request may wait in the picker while all replicas are at their limit, and until a
    second before `timeouts.idle` at most; then it is refused with 429. 0 = at once."""
    low_objectives: Annotated[tuple[Label, ...], Field(max_length=MAX_LOW_OBJECTIVES)] = ()
    """Requests that name one of these in the header `x-gateway-inference-objective` are in the
    queue's lower band, as with InferenceObjectives of a negative priority."""
    timeout_header: HeaderName | None = None
    """Header in which clients say how many seconds they wait for the first byte, such as
    `x-stainless-read-timeout` of OpenAI's for Python, `x-stainless-timeout` of that for Node: what
    would wait longer in the picker is refused."""
    without_picker: Literal["open", "closed"] | None = None
    """What Envoy does with requests that no picker answers: `open` balances by itself, `closed`
    refuses them, also those that waited in a picker that died. If omitted, as `pickers.fail_open`
    says. Requests whose pool only their body names are refused if one of these pools is closed."""
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Requests for more tokens are refused with 400; 0 = no limit."""

    @model_validator(mode="before")
    @classmethod
    def _whole_chats(cls, data: Any) -> Any:
        """Read whole bodies for a chat template: tools are rendered first and stand last."""
        if isinstance(data, dict) and data.get("chat_template") and data.get("body") is None:
            return {**data, "body": "full"}
        return data
