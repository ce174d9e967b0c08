"""The nouns of routing: pools, endpoints, requests, readings, decisions.

All are values that nobody changes. Unknown is ``None``, never 0. Times are seconds on the caller's
monotonic clock unless a name says otherwise; tokens are estimates where no tokenizer is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from ext_proc.routing.constraints import (
    USUAL_LEARNING,
    USUAL_WEIGHTS,
    AdapterMode,
    GpuWeights,
    LearnedSettings,
    ModelNeeds,
)
from ext_proc.routing.pool_settings import (
    USUAL_OUTLIER,
    USUAL_SLOW_START,
    CustomMetric,
    Outlier,
    SlowStart,
)
from ext_proc.routing.request import Decision, Features, Form, Request, SequenceKey

__all__ = [
    "ABORTED",
    "DONE",
    "SHUTDOWN",
    "BodyMode",
    "Decision",
    "Endpoint",
    "EndpointKey",
    "Features",
    "Form",
    "KvEvents",
    "Outcome",
    "Pool",
    "Protocol",
    "Reading",
    "Refusal",
    "RefusalKind",
    "Request",
    "SequenceKey",
    "Ticket",
    "Variant",
]

Protocol = Literal["http", "grpc"]
BodyMode = Literal["none", "peek", "full"]


class EndpointKey(NamedTuple):
    """Identity of a replica: a restarted or returned one has a new incarnation."""

    id: str
    incarnation: int


class KvEvents(NamedTuple):
    """Where an endpoint's engines publish what their caches hold."""

    address: str
    """``tcp://ip:port`` of the first; the next ones publish on the next ports."""
    replay: str | None = None
    """The same for asking for what was missed."""
    engines: int = 1
    topic: str = ""
    model: str = ""
    """The model that they serve, as requests name it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica as one pool sees it."""

    key: EndpointKey
    variant: str
    http: str | None
    """``ip:port`` of its HTTP port, ``None`` where it has none."""
    grpc: str | None
    metrics_url: str | None = None
    capacity: float = 1.0
    zone: str = ""
    draining: bool = False
    joined_unix_s: float | None = None
    """Wall-clock time at which it joined, where its ramp starts; ``None`` = warm."""
    device: str = ""
    """What it computes on; empty = unsaid."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters that the fleet says are loaded on it."""
    gpu_metrics_url: str | None = None
    """Page of NVIDIA's DCGM exporter on its host."""
    gpus: frozenset[str] = frozenset()
    """Its GPUs on that page, by index or UUID; empty = all."""
    told: tuple[str, ...] = ()
    """Conditions that pickers found and the control server tells to all."""
    kv_events: KvEvents | None = None
    """``None`` = what its cache holds is guessed from what it was sent."""

    def address(self, protocol: Protocol) -> str | None:
        """Return the address for ``protocol``, ``None`` where the replica does not speak it."""
        return self.http if protocol == "http" else self.grpc


@dataclass(frozen=True, slots=True)
class Variant:
    """A named share of a pool."""

    name: str
    weight: int
    model_version: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Header name (lower case) and value; all must match to pin a request here."""
    probe_path: str = ""
    """HTTP path whose 200 says that a replica serves this; empty = replicas are not probed."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What the picker knows about one pool."""

    name: str
    models: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    default_for_grpc: bool = False
    default_for_paths: frozenset[str] = frozenset()
    variants: tuple[Variant, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    policy: str = "auto"
    allow_override: frozenset[str] = frozenset()
    """Policies that one request may ask for instead of ``policy``."""
    body: BodyMode = "peek"
    fallbacks: int = 2
    session_header: str = "x-session-id"
    block_chars: int = 256
    block_tokens: int = 64
    """Tokens in a block of a prompt whose token ids are known."""
    tokenizer: str = ""
    """Path of the model's ``tokenizer.json`` on the picker's machine; empty = none."""
    index_blocks: int = 100_000
    index_ttl_s: float = 600.0
    sequence_idle_s: float = 60.0
    load_factor: float = 1.5
    max_body_bytes: int = 4 * 2**20
    slow_start: SlowStart = USUAL_SLOW_START
    per_endpoint_in_flight: int = 0
    """Most requests in flight on one endpoint; 0 = no limit."""
    outlier: Outlier = USUAL_OUTLIER
    probe_interval_s: float = 5.0
    custom_metrics: tuple[CustomMetric, ...] = ()
    """Series of the replicas' pages that are declared, not known by a dialect."""
    model_needs: tuple[ModelNeeds, ...] = ()
    """What single models need of a replica."""
    gpu_weights: GpuWeights = USUAL_WEIGHTS
    learned: LearnedSettings = USUAL_LEARNING
    co_batch_hold_s: float = 0.0
    """Longest time for which ``co-batch`` lets a request wait for companions; 0 = none waits."""
    adapters: AdapterMode = "prefer"
    """How much it counts that a replica has a request's LoRA adapter loaded."""
    prefer_zone: bool = False
    """Replicas of the picker's own zone are preferred."""
    spill_factor: float = 1.5
    """How far above the mean the load of a preferred replica may be."""
    repository: bool = False
    """Ask the replicas' repository index for the state of the pool's models."""
    gpu_memory_free: float = 0.0
    """Least free share of a replica's GPU memory, 0..1; 0 = not looked at."""
    share: bool = False
    """Report sick replicas to the control server."""
    orca: bool = False
    """Ask for load reports in answers' headers."""


@dataclass(slots=True)
class Reading:
    """What one endpoint said about itself (for one model where ``model`` is set).

    Nobody changes one once it is made. It is not ``frozen``, which would make it three
    times as expensive.
    """

    at: float
    """When it was read, seconds on the monotonic clock."""
    model: str | None = None
    version: str | None = None
    queued: float | None = None
    """Requests that wait inside the replica."""
    running: float | None = None
    saturated: bool | None = None
    """The engine runs as many requests as it can, so ``queued`` under-reports."""
    kv_used: float | None = None
    """Share of the KV cache in use, 0..1."""
    gpu_used: float | None = None
    """Share of the time in which its GPUs were busy, 0..1."""
    kv_block_tokens: int | None = None
    reused_blocks: float | None = None
    """Counter of prefix blocks served from cache, where the replica exports one."""
    kv_blocks: int | None = None
    """Blocks that its KV cache has in all."""
    gpu_memory_used: float | None = None
    """Share of its GPUs' memory in use, 0..1."""
    gpu_memory_free: float | None = None
    """Bytes of its GPUs' memory that are free."""
    adapters: frozenset[str] | None = None
    """LoRA adapters that run or wait there."""
    gpu_xid: int | None = None
    """NVIDIA XID code of the last GPU error, 0 = no error so far."""
    queue_s: float | None = None
    """Mean seconds that the requests finished since the reading before had waited."""
    compute_s: float | None = None
    """Mean seconds that they took from then on."""
    iterations: float | None = None
    """Counter of the engine's iterations: while requests run it moves, or the engine is stuck."""
    cpu_used: float | None = None
    """Share of its CPUs in use; may be above 1."""
    memory_used: float | None = None
    """Share of its main memory in use, 0..1."""
    rps: float | None = None
    """Requests per second that it serves, whoever sends them."""
    failures_per_s: tuple[tuple[str, float], ...] = ()
    """Requests that failed inside the replica since the reading before, by reason; empty where
    none did, or where it is unknown."""


class Outcome(StrEnum):
    """How a ticket ended."""

    DONE = "done"
    """The HTTP exchange ended; Envoy closed the stream."""
    ABORTED = "aborted"
    """The stream was lost before the exchange ended as it should."""
    MOVED = "moved"
    """Another replica served; the charge went on there under a ticket of its own."""
    REMOVED = "removed"
    """The endpoint left while the request ran."""
    SHUTDOWN = "shutdown"


DONE: Final = Outcome.DONE  # see `ext_proc.exchange.state`
ABORTED: Final = Outcome.ABORTED
SHUTDOWN: Final = Outcome.SHUTDOWN


class Ticket(NamedTuple):
    """The charge of one pick; it is settled exactly once."""

    id: int
    endpoint: EndpointKey
    pool: str
    work: float
    """Estimated input tokens not cached, at least 1."""
    at: float
    prompted: bool = False
    """The request has a prompt, so ``work`` says how large it is."""
    drain_s: float | None = None
    """What stood before it by the replica's virtual clock; ``None`` = its duration teaches
    nothing."""
    ahead: int = 0
    """Our requests in flight on the replica when it came."""


class RefusalKind(StrEnum):
    """Why nobody was chosen; the value is the machine-readable reason."""

    NO_ENDPOINTS = "no-endpoints"
    """503: no eligible endpoint at all."""
    SATURATED = "saturated"
    """429: all that are eligible are at their in-flight limit."""
    UNKNOWN_POOL = "unknown-pool"
    """404: no pool of that name."""
    UNKNOWN_MODEL = "unknown-model"
    """404: no pool serves that model in that form."""
    UNKNOWN_VERSION = "unknown-version"
    """404: the pool has no replica of that version."""
    BAD_REQUEST = "bad-request"
    """400: the body cannot be read, and only the body names the pool."""
    TOO_LARGE = "too-large"
    """413: the body is above the pool's bound."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nobody was chosen."""

    kind: RefusalKind
    message: str
    """One sentence for the caller."""
