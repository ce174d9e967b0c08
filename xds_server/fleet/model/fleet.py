"""The fleet: all settings that an operator can declare, as one immutable value.

The same model parses the fleet file, serves the admin API and is published as JSON Schema
(``tidegate validate --schema``). Errors of single fields come from the types in ``fields``; rules
over several fields are checked in ``xds_server.fleet.rules.fleet``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tidegate_api.addresses import PICKER_ADDRESS
from tidegate_api.names import POLICY_HEADER, POOL_HEADER, SESSION_HEADER
from tidegate_api.pools import (
    MAX_CO_BATCH_HOLD_MS,
    MAX_NEEDS,
    MAX_VARIANTS,
    MAX_WEIGHT_SUM,
    MIN_FACTOR,
    AdapterMode,
    BodyMode,
    UnsoundMode,
)
from xds_server.fleet.model.fields import (
    RESERVED_HEADER_PREFIXES,
    CookieName,
    CookieValue,
    Duration,
    EndpointId,
    FilePath,
    HeaderName,
    HeaderValue,
    HostPort,
    HttpPath,
    Label,
    MetricsUrl,
    ModelName,
    ModelVersion,
    Name,
    Percentage,
    ServerName,
    Strict,
)
from xds_server.fleet.model.resilience import (
    CircuitBreaker,
    HealthSpec,
    OutlierSpec,
    Shadow,
    SlowStartSpec,
    Timeouts,
)
from xds_server.fleet.model.routing import (
    GpuWeightsSpec,
    LearnedSpec,
    ModelNeedsSpec,
    PolicyName,
)
from xds_server.fleet.model.telemetry import EndpointTelemetry, PoolTelemetry


class Match(Strict):
    """Which requests belong to the pool."""

    models: tuple[ModelName, ...] = ()
    """Models it serves; in a path (`/v2/models/NAME`) or in the body."""
    paths: tuple[HttpPath, ...] = ()
    """Further exact paths whose body names the model, e.g. `/v1/chat/completions`."""


class VariantMatch(Strict):
    """What pins a request to a variant."""

    headers: dict[HeaderName, HeaderValue] = Field(default={})
    """All of these request headers must have exactly these values."""
    cookies: dict[CookieName, CookieValue] = Field(default={})
    """All of these cookies must have exactly these values. Envoy alone sees cookies: they pin
    where path or headers name the pool, not where only the body does."""

    @model_validator(mode="after")
    def _reserved(self) -> Self:
        for name in self.headers:
            if name.startswith(RESERVED_HEADER_PREFIXES):
                raise PydanticCustomError(
                    "reserved_header",
                    "header '{name}' is reserved and stripped from client requests; "
                    "choose another name",
                    {"name": name},
                )
        return self

    def __bool__(self) -> bool:
        """Return whether it contains any condition."""
        return bool(self.headers or self.cookies)


class VariantSpec(Strict):
    """A named share of the pool: replicas that serve one version of the model."""

    name: Name
    """Name of the variant, e.g. `stable` or `canary`."""
    weight: Annotated[int, Field(ge=0, le=MAX_WEIGHT_SUM)] = 1
    """Relative share of the requests that nothing pins; 0 = none."""
    model_version: ModelVersion | None = None
    """The model version that these replicas serve. Requests are never rewritten."""
    match: VariantMatch = VariantMatch()
    """Requests that go to this variant whatever the weights."""


class EndpointSpec(Strict):
    """One replica."""

    id: EndpointId = ""
    """Name of the replica, the same in each pool it serves; if omitted, its gRPC or else HTTP
    address."""
    http: HostPort | None = None
    """Address of its HTTP port."""
    grpc: HostPort | None = None
    """Address of its gRPC port."""
    metrics: MetricsUrl | None = None
    """URL of its Prometheus page."""
    variant: Name | None = None
    """Its variant; the pool's first if omitted."""
    capacity: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """Relative strength; 2.0 takes twice the load of 1.0."""
    zone: Label = ""
    """Where it stands, for people and metrics, and for the pool's `zones`."""
    labels: Annotated[dict[Label, Label], Field(max_length=64)] = Field(default={})
    """Free key-value pairs, carried to the pickers."""
    device: Label = ""
    """What it computes on, e.g. `a100`; for the pool's `model_needs`."""
    adapters: Annotated[tuple[Label, ...], Field(max_length=1024)] = ()
    """LoRA adapters that are loaded on it, as requests name them."""
    draining: bool = False
    """Takes no new work."""
    telemetry: EndpointTelemetry = EndpointTelemetry()
    """Further sources of its readings, beside `metrics`."""

    @model_validator(mode="before")
    @classmethod
    def _default_id(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("id"):
            return {**data, "id": data.get("grpc") or data.get("http") or ""}
        return data

    @model_validator(mode="after")
    def _has_address(self) -> Self:
        if self.http is None and self.grpc is None:
            raise PydanticCustomError("no_address", "an endpoint needs `grpc`, `http` or both", {})
        return self


class Routing(Strict):
    """How the picker chooses."""

    policy: PolicyName = "auto"
    """How the picker prices replicas; docs/reference/policies.md says which is for what."""
    allow_override: Annotated[tuple[PolicyName, ...], Field(max_length=32)] = ()
    """Policies that a request may ask for with the header `tidegate-policy`, where
    `listener.client_headers` lists it."""
    body: BodyMode = "peek"
    """How much of a request's body the picker reads: nothing, a bounded first part, or all."""
    first_message: Literal["none", "duplex"] = "none"
    """Whether a gRPC stream (ModelStreamInfer) is routed by its headers alone, or by its first
    message, with every message going through the picker: then a stream breaks with its picker."""
    fallbacks: Annotated[int, Field(ge=0, le=8)] = 2
    """Further endpoints behind the pick, which Envoy's retries walk."""
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
    """A prefix unused for so long is forgotten."""
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
    """Replicas of the picker's own zone (its `--zone`) are preferred."""
    spill_factor: Annotated[float, Field(ge=MIN_FACTOR, le=100)] = 1.5
    """A preferred replica (zone, adapter, device) is kept to while its requests in flight are at
    most this factor above the mean."""
    peek_bytes: Annotated[int, Field(ge=4096, le=16 * 2**20)] = 65_536
    """In body mode `peek`: about how much of a body the picker reads, and the largest body that
    Envoy can send again to another replica."""
    max_body: Annotated[int, Field(ge=1024, le=256 * 2**20)] = 4 * 2**20
    """Bytes; in body mode `full` a larger request is refused with 413."""
    refuse_deadly: bool = True
    """Requests that several replicas died with run one at a time, and the one that is to blame is
    refused with 422 for a minute; docs/explanation/deadly-requests.md says when."""
    unsound_requests: UnsoundMode = "refuse"
    """Whether requests whose tensors' shapes contradict their data, or whose JSON nests too deeply,
    are refused with 400: they can end Triton."""
    max_tensor_bytes: Annotated[int, Field(ge=1024, le=2**62)] = 2**31
    """With `unsound_requests: refuse`, the most bytes that the shape of one input may declare."""
    max_header_bytes: Annotated[int, Field(ge=0, le=65_536)] = 7680
    """Requests under `/v2` whose headers are longer are refused with 431: Triton closes connections
    at 8,190 bytes, with what Envoy adds. Below 4,096 counts as 4,096; 0 = no limit."""
    max_tokens: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Requests for more tokens are refused with 400; 0 = no limit."""

    @model_validator(mode="before")
    @classmethod
    def _whole_chats(cls, data: Any) -> Any:
        """Read whole bodies for a chat template: tools are rendered first and stand last."""
        if isinstance(data, dict) and data.get("chat_template") and data.get("body") is None:
            return {**data, "body": "full"}
        return data


class UpstreamTls(Strict):
    """TLS to a pool's replicas. The files are read by each Envoy, and again when they change."""

    ca: FilePath | None = None
    """Certificates that a replica's must be signed by; unchecked if omitted."""
    certificate: FilePath | None = None
    """Envoy's own certificate (PEM), where replicas ask for one."""
    key: FilePath | None = None
    """Its private key."""
    server_name: ServerName | None = None
    """Name to ask for, and, with `ca`, the name that the replica's certificate must have."""


class ListenerTls(Strict):
    """TLS to clients. The files are read by each Envoy, and again when they change."""

    certificate: FilePath
    """Certificate chain (PEM)."""
    key: FilePath
    """Its private key."""
    client_ca: FilePath | None = None
    """If given, clients must show a certificate signed by one of these."""


class PoolSpec(Strict):
    """Replicas that serve the same models, and how they are used."""

    name: Name
    """Name of the pool; not `unnamed`, `unpicked` or `unserved`."""
    default: bool = False
    """Takes requests whose pool only the body could name, where it names no model."""
    match: Match
    """Which requests belong to the pool."""
    variants: Annotated[tuple[VariantSpec, ...], Field(min_length=1, max_length=MAX_VARIANTS)] = (
        VariantSpec(name="stable"),
    )
    """Named shares of the pool, for canaries and A/B tests; at most 256."""
    endpoints: tuple[EndpointSpec, ...] = ()
    """The replicas."""
    routing: Routing = Routing()
    """How the picker chooses among the replicas."""
    model_needs: Annotated[tuple[ModelNeedsSpec, ...], Field(max_length=MAX_NEEDS)] = ()
    """What single models need of a replica."""
    slow_start: SlowStartSpec = SlowStartSpec()
    """The ramp of a new replica."""
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    """Bounds on connections, requests and retries."""
    outlier: OutlierSpec = OutlierSpec()
    """When failing or slow replicas are ejected."""
    health: HealthSpec = HealthSpec()
    """Active checks, and what pickers share of their findings."""
    timeouts: Timeouts = Timeouts()
    """Bounds on a request's time."""
    zones: tuple[Label, ...] = ()
    """Zones in the order in which Envoy, left to itself, prefers their replicas; further zones
    come last. Empty = all alike."""
    shadow: Shadow | None = None
    """Copies requests to a variant without traffic of its own."""
    drop_overload: Percentage = 0.0
    """Emergency brake: Envoy refuses this share of the pool's requests with 503."""
    upstream_tls: UpstreamTls | None = None
    """Speak TLS to the replicas."""
    telemetry: PoolTelemetry = PoolTelemetry()
    """Series of the replicas' metrics pages that no dialect knows, and load reports."""

    def variant_of(self, endpoint: EndpointSpec) -> str:
        """Return the name of the variant to which ``endpoint`` belongs."""
        return endpoint.variant or self.variants[0].name


class ListenerSpec(Strict):
    """Where clients connect."""

    address: HostPort = "127.0.0.1:10000"
    """Where Envoy listens: HTTP/1.1, HTTP/2 and gRPC on one port."""
    debug_headers: bool = False
    """Answer with `x-tidegate-served-by`, the replica's address."""
    buffer_bytes: Annotated[int, Field(ge=16_384, le=16 * 2**20)] = 65_536
    """What Envoy buffers of one connection, each way. Also bounds what `peek` collects."""
    headers_timeout: Duration = 10.0
    """How long a client may take to send a request's headers; 0 = no limit. A body that stalls is
    ended by the pool's `timeouts.idle`."""
    upload_timeout: Duration = 300.0
    """How long a client may take to send a whole request over HTTP/1, unless the answer begins
    before; 0 = no limit. Over HTTP/2, where gRPC streams stay open, only `timeouts.idle` counts."""
    client_headers: Annotated[tuple[HeaderName, ...], Field(max_length=256)] | None = None
    """Headers that choose a pool, model, policy or variant and that clients may send:
    `tidegate-pool`, `tidegate-model`, `tidegate-policy` and those of variants' `match`. The others
    are stripped. If omitted: `tidegate-model` and all of the variants' `match`."""
    tls: ListenerTls | None = None
    """Accept TLS only."""

    def takes(self, header: str) -> bool:
        """Return whether clients may send ``header``, one of those that choose."""
        if self.client_headers is None:
            return header not in (POOL_HEADER, POLICY_HEADER)
        return header in self.client_headers


class Pickers(Strict):
    """The pickers that Envoy asks."""

    addresses: tuple[HostPort, ...] = (PICKER_ADDRESS,)
    """The pickers that Envoy asks; of a picker with several workers, each worker."""
    timeout: Annotated[Duration, Field(gt=0)] = 1.0
    """How long Envoy waits for an answer before it goes on by itself. A dead picker costs nothing
    (Envoy's health check), so this bounds only a slow one; too short, and sequences lose their
    replica whenever the machine is busy."""
    fail_open: bool = True
    """Without an answer Envoy balances by itself; otherwise the request fails."""


class Fleet(Strict):
    """The whole desired state."""

    listener: ListenerSpec = ListenerSpec()
    """Where clients connect."""
    pickers: Pickers = Pickers()
    """The pickers that Envoy asks for each request."""
    on_reject: Literal["rollback", "keep", "quorum"] = "rollback"
    """When an Envoy refuses new routes while others took them: all go back, or the others keep
    them, or all go back if at least `reject_quorum` of the Envoys refuse."""
    reject_quorum: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """With `on_reject: quorum`: the share of the Envoys that count whose refusal ends a change."""
    waves: bool = False
    """Each step of a change comes to one Envoy, then to its node group, then to all. Drains, shed
    load and replicas found sick do not wait for waves."""
    pools: Annotated[tuple[PoolSpec, ...], Field(min_length=1)]
    """The pools of replicas."""
