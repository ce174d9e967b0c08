"""Reading: one report of an endpoint's metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Reading:
    """Metrics of one endpoint at one time, for one model if ``model`` is set.

    It is never changed after construction. It is not ``frozen``, because that makes construction
    three times as expensive.
    """

    at: float
    """When it was read, monotonic seconds."""
    model: str | None = None
    version: str | None = None
    queued: float | None = None
    """Requests queued inside the replica."""
    running: float | None = None
    slots: float | None = None
    """Most requests that it runs at once, as the engine or its configuration declares."""
    batch: float | None = None
    """Requests that an instance takes at once when it gets free, likewise."""
    deferred: float | None = None
    """Requests among ``queued`` that wait for something else than room, such as an adapter."""
    asleep: bool | None = None
    """The engine was put to sleep: it computes nothing until it is woken."""
    saturated: bool | None = None
    """The engine runs its maximum number of requests, so ``queued`` under-reports."""
    kv_used: float | None = None
    """Share of the KV cache in use, 0..1."""
    gpu_used: float | None = None
    """Share of time that its GPUs were busy, 0..1."""
    kv_block_tokens: int | None = None
    reused_blocks: float | None = None
    """Counter of prefix blocks served from the cache, if the replica exports one."""
    prompt_tokens: float | None = None
    """Counter of the tokens of all prompts, cached ones included."""
    prompts: float | None = None
    """Counter of these prompts, that counts each when its tokens are counted."""
    first_tokens: float | None = None
    """Counter of the prompts whose first token it has made."""
    first_tokens_s: float | None = None
    """Sum of the seconds that these waited for it, from their arrival in the engine."""
    kv_blocks: int | None = None
    """Total blocks of its KV cache."""
    gpu_memory_used: float | None = None
    """Share of its GPUs' memory in use, 0..1."""
    gpu_memory_free: float | None = None
    """Free memory of its GPUs, bytes."""
    adapters: frozenset[str] | None = None
    """LoRA adapters of its running and queued requests."""
    adapters_waiting: frozenset[str] | None = None
    """Those of ``adapters`` with queued requests only."""
    adapter_slots: int | None = None
    """Most adapters that it runs at once."""
    gpu_xid: int | None = None
    """NVIDIA XID code of the last GPU error, 0 = no error so far."""
    queue_s: float | None = None
    """Mean seconds in the queue, of the requests finished since the previous reading."""
    compute_s: float | None = None
    """Mean seconds of the same requests after the queue."""
    iterations: float | None = None
    """Counter of the engine's iterations; the engine is stuck if it stops while requests run."""
    cpu_used: float | None = None
    """Share of its CPUs in use; may be above 1."""
    memory_used: float | None = None
    """Share of its main memory in use, 0..1."""
    rps: float | None = None
    """Requests per second that it serves, from all clients."""
    failures_per_s: tuple[tuple[str, float], ...] = ()
    """Requests per second that failed inside the replica since the previous reading, by reason;
    empty if none failed or if unknown."""
