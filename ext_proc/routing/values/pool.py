"""Pools, their variants and their endpoints, as the picker knows them.

All are immutable. Unknown is ``None``, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ext_proc.routing.values.settings import (
    USUAL_LEARNING,
    USUAL_OUTLIER,
    USUAL_SLOW_START,
    USUAL_WEIGHTS,
    AdapterMode,
    CustomMetric,
    GpuWeights,
    LearnedSettings,
    ModelNeeds,
    Outlier,
    SlowStart,
)

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
