"""Pools, their variants and their endpoints, as the control server describes them to the picker.

All are immutable. Unknown values are ``None``, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from ext_proc.routing.values.settings import (
    USUAL_LEARNING,
    USUAL_OUTLIER,
    USUAL_SLOW_START,
    USUAL_WEIGHTS,
    CustomMetric,
    GpuWeights,
    LearnedSettings,
    ModelNeeds,
    Outlier,
    SlowStart,
)
from tidegate_api.names import SESSION_HEADER

if TYPE_CHECKING:
    from tidegate_api.pools import AdapterMode, BodyMode, HungMode, LimitMode, UnsoundMode
    from tidegate_common.upstream.contexts import ReplicaTls

Protocol = Literal["http", "grpc"]


class EndpointKey(NamedTuple):
    """Identity of a replica; one that is removed and added again has a new incarnation."""

    id: str
    incarnation: int


class KvEvents(NamedTuple):
    """Where an endpoint's engines publish the contents of their caches (KV events)."""

    address: str
    """``tcp://ip:port`` of the first engine; further engines use the following ports."""
    replay: str | None = None
    """``tcp://ip:port`` from which missed events are requested; ``None`` = no replay."""
    engines: int = 1
    topic: str = ""
    model: str = ""
    """The model that the engines serve, as requests name it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica as configured in one pool."""

    key: EndpointKey
    variant: str
    http: str | None
    """``ip:port`` of its HTTP port, ``None`` if it has none."""
    grpc: str | None
    metrics_url: str | None = None
    capacity: float = 1.0
    zone: str = ""
    draining: bool = False
    joined_unix_s: float | None = None
    """Wall-clock seconds at which it joined and its ramp starts; ``None`` = warm."""
    device: str = ""
    """Device that it computes on; empty = unspecified."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters that the fleet file lists as loaded on it."""
    gpu_metrics_url: str | None = None
    """Metrics page of NVIDIA's DCGM exporter on its host."""
    gpus: frozenset[str] = frozenset()
    """Its GPUs on that page, by index or UUID; empty = all."""
    told: tuple[str, ...] = ()
    """Conditions that pickers reported and the control server publishes to all pickers."""
    leaving: frozenset[str] = frozenset()
    """Models that are about to be unloaded from it."""
    kv_events: KvEvents | None = None
    """``None`` = the contents of its cache are estimated from the prompts that it was sent."""

    def address(self, protocol: Protocol) -> str | None:
        """Return the address for ``protocol``, ``None`` if the replica does not support it."""
        return self.http if protocol == "http" else self.grpc


@dataclass(frozen=True, slots=True)
class Variant:
    """A named share of a pool."""

    name: str
    weight: int
    model_version: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Header names (lower case) and values; a request that matches all is pinned to the variant."""
    probe_path: str = ""
    """HTTP path on which a ready replica answers 200; empty = replicas are not probed."""


class Arms(NamedTuple):
    """A rollout of a pool, as far as a picker needs it."""

    rollout: str
    """Its id; another one begins anew."""
    canary: str
    """Names of variants."""
    stable: str
    step: int
    """Number of the step in force."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The configuration of one pool."""

    name: str
    models: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    default_for_grpc: bool = False
    default_for_http: bool = False
    default_for_paths: frozenset[str] = frozenset()
    variants: tuple[Variant, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    policy: str = "auto"
    allow_override: frozenset[str] = frozenset()
    """Policies that a request may select instead of ``policy``."""
    body: BodyMode = "peek"
    fallbacks: int = 2
    session_header: str = SESSION_HEADER
    timeout_header: str = ""
    """Header in which callers say how long they wait for a byte, seconds; empty = none."""
    block_chars: int = 256
    block_tokens: int = 64
    """Tokens in a block of a prompt whose token ids are known."""
    tokenizer: str = ""
    """Path of the model's ``tokenizer.json`` on the picker's machine; empty = none."""
    chat_template: str = ""
    """Path of the model's chat template on the picker's machine; empty = none."""
    index_blocks: int = 100_000
    index_ttl_s: float = 600.0
    sequence_idle_s: float = 60.0
    load_factor: float = 1.5
    max_body_bytes: int = 4 * 2**20
    hung_requests: HungMode = "move"
    """What becomes of requests on a replica that is found frozen."""
    move_bytes: int = 65_536
    """Most bytes of a body with which Envoy takes a request to another replica; 0 = it does not."""
    unsound_requests: UnsoundMode = "refuse"
    """What happens to requests that could end a replica, by what was read of them."""
    max_tensor_bytes: int = 2**31
    """Maximum bytes that the shape of one input may declare."""
    max_header_bytes: int = 7680
    """Maximum length of the headers of a KServe request over HTTP; 0 = no limit."""
    max_inflated_bytes: int = 2**26
    """Maximum bytes to which a replica would inflate a compressed body; 0 = no limit."""
    uploads_per_client: int = 512
    """Maximum uploads that one client may have under way; 0 = no limit."""
    max_tokens: int = 0
    """Maximum tokens that a request may ask for; 0 = no limit."""
    slow_start: SlowStart = USUAL_SLOW_START
    per_endpoint_in_flight: int = 0
    """Maximum number of requests in flight on one endpoint; 0 = not set."""
    limit: LimitMode = "none"
    """Whether requests in flight are limited by what a replica can run at once (``limits``)."""
    low_objectives: frozenset[str] = frozenset()
    """Names of InferenceObjectives whose requests are in the lower band."""
    hold_s: float = 0.0
    """Longest time that a request waits in the picker for a replica with room; 0 = it is refused at
    once. Envoy allows it."""
    request_s: float = 0.0
    """Bound on a whole request; 0 = none."""
    outlier: Outlier = USUAL_OUTLIER
    probe_interval_s: float = 5.0
    first_answer_s: float = 120.0
    """The route's bound on the time to the headers of an answer; 0 = none."""
    first_answer_least_s: float = 15.0
    """Minimum to which the picker shortens that bound; 0 = it does not."""
    custom_metrics: tuple[CustomMetric, ...] = ()
    """Declared series of the replicas' metrics pages that no dialect reads."""
    model_needs: tuple[ModelNeeds, ...] = ()
    """Requirements of individual models on a replica."""
    gpu_weights: GpuWeights = USUAL_WEIGHTS
    learned: LearnedSettings = USUAL_LEARNING
    co_batch_hold_s: float = 0.0
    """Maximum seconds that ``co-batch`` holds a request until others join it; 0 = never holds."""
    adapters: AdapterMode = "prefer"
    """Whether a replica with the request's LoRA adapter loaded is ignored, preferred, required."""
    prefer_zone: bool = False
    """Prefer replicas in the picker's own zone."""
    zone_hop_s: float = 0.0
    """What a pick in another zone costs then, for policies in seconds; 0 = as measured."""
    spill_factor: float = 1.5
    """Maximum load of a preferred replica, as a multiple of the mean load."""
    repository: bool = True
    """Ask replicas which models they have, and send a model's requests where it is READY."""
    gpu_memory_free: float = 0.0
    """Minimum free share of a replica's GPU memory, 0..1; 0 = not checked."""
    share: bool = False
    """Report unhealthy replicas to the control server."""
    usage: bool = False
    """Count the tokens that streamed answers tell."""
    orca: bool = False
    """Request ORCA load reports in the headers of answers."""
    refuse_deadly: bool = True
    """Suspect requests that several replicas died with, and refuse the one that is to blame."""
    seed: int = field(default=0, repr=False)
    """Seed of prompt hashes, below ``2 ** 64``: the same in all pools of a fleet, and secret, so it
    is never shown; 0 = none."""
    log_slots: tuple[str, ...] = ()
    """Addresses of the fleet's pickers by the slot of Envoy's log sinks; empty = a free one."""
    upstream_tls: ReplicaTls | None = None
    """TLS that the replicas speak; ``None`` = they speak plain."""
    canary: Arms | None = None
    """The rollout that runs; ``None`` = none."""
    needs_pick: bool = False
    """No request may go on without a pick."""
    describe_picks: bool = False
    """Write what Envoy's access log shows of a pick into its metadata."""
