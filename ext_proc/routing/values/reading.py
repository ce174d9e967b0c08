"""What an endpoint reports about itself."""

from __future__ import annotations

from dataclasses import dataclass


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
