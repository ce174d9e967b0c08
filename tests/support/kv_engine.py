"""The KV cache of a vLLM engine: blocks, evictions, and events over real ZMQ sockets.

It publishes vLLM's events (``vllm/distributed/kv_events.py``, ``block_pool.py``). The cache is a
real one, so that a test can compare a subscriber's index with its content.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from support.vllm_blocks import block_hash, none_hash

ROOT = none_hash("0")
SUBSCRIBES = b"\x01"
END = (-1).to_bytes(8, "big", signed=True)


class KvCache:
    """Blocks of prompts; evicts the least recently used first, leaf before root.

    Args:
        block_size: Tokens per block.
        capacity: Number of blocks.
        maps: Encode events as maps, like new vLLM versions; else as arrays.
        as_bytes: Encode block hashes as bytes; else as 64-bit integers.
    """

    def __init__(
        self, block_size: int = 4, capacity: int = 64, *, maps: bool = True, as_bytes: bool = False
    ) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self._maps = maps
        self._as_bytes = as_bytes
        self._held: dict[bytes, tuple[int, ...]] = {}
        """Hash -> prompt up to the block's end, least recently used first."""
        self._copies: Counter[bytes] = Counter()
        self.events: list[Any] = []

    def holds(self, tokens: tuple[int, ...]) -> int:
        """Return the number of leading blocks of a prompt in the cache."""
        hashes = self._hashes(tokens)
        return next((i for i, each in enumerate(hashes) if each not in self._held), len(hashes))

    def prompts(self) -> set[tuple[int, ...]]:
        """Return all cached blocks, each as the prompt up to its end."""
        return set(self._held.values())

    def run(
        self, tokens: tuple[int, ...], *, reused: int | None = None, report: bool = False
    ) -> int:
        """Compute a prompt; return the number of its blocks that were cached.

        At least one token is computed, as in vLLM, so the last block of a prompt that is held
        whole gets a copy.

        Args:
            tokens: The prompt.
            reused: Maximum number of cached blocks that are reused; the others get a copy, like
                those that an equal prompt computes at the same time.
            report: Report the reused blocks too (vLLM's ``kv_cache_report_mode: full``).
        """
        hashes = self._hashes(tokens)
        known = min(self.holds(tokens), (len(tokens) - 1) // self.block_size)
        if reused is not None:
            known = min(known, reused)
        if report and known:
            self._stored(hashes[:known], None, tokens[: known * self.block_size])
        self._compute(hashes, known, tokens)
        if hashes[known:]:
            parent = hashes[known - 1] if known else None
            end = len(hashes) * self.block_size
            self._stored(hashes[known:], parent, tokens[known * self.block_size : end])
        return known

    def clear(self) -> None:
        """Drop all blocks (vLLM's ``reset_prefix_cache``)."""
        self._held.clear()
        self._copies.clear()
        self._tell("AllBlocksCleared")

    def _evict(self, keep: set[bytes]) -> None:
        for each in [*self._copies, *self._held]:
            if self._copies.get(each):
                self._copies[each] -= 1
                self._copies += Counter()
            elif each not in keep:
                del self._held[each]
            else:
                continue
            self._tell("BlockRemoved", block_hashes=[self._name(each)], medium="GPU")
            return
        raise ValueError("the prompt does not fit")

    def _hashes(self, tokens: tuple[int, ...]) -> list[bytes]:
        found, parent = [], ROOT
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            parent = block_hash(parent, tokens[end - self.block_size : end])
            found.append(parent)
        return found

    def _compute(self, hashes: list[bytes], known: int, tokens: tuple[int, ...]) -> None:
        for each in reversed(hashes):
            if each in self._held:
                self._held[each] = self._held.pop(each)
        new = len(hashes) - known
        while len(self._held) + sum(self._copies.values()) + new > self.capacity:
            self._evict(set(hashes))
        for at, each in enumerate(hashes[known:], known + 1):
            if each in self._held:
                self._copies[each] += 1
            else:
                self._held[each] = tokens[: at * self.block_size]
        for each in reversed(hashes):
            self._held[each] = self._held.pop(each)

    def _stored(self, hashes: list[bytes], parent: bytes | None, tokens: tuple[int, ...]) -> None:
        self._tell(
            "BlockStored",
            block_hashes=[self._name(each) for each in hashes],
            parent_block_hash=None if parent is None else self._name(parent),
            token_ids=list(tokens),
            block_size=self.block_size,
            lora_id=None,
            medium="GPU",
            lora_name=None,
        )

    def _name(self, full: bytes) -> int | bytes:
        return full if self._as_bytes else int.from_bytes(full[-8:], "big")

    def _tell(self, kind: str, **fields: Any) -> None:
        self.events.append({"type": kind, **fields} if self._maps else [kind, *fields.values()])

    def batch(self) -> bytes:
        """Return the encoded events since the last call."""
        events, self.events = self.events, []
        return msgspec.msgpack.encode([1.5, events, 0])


class KvEngine:
    """An engine that publishes the events of a cache; an async context manager.

    Args:
        cache: Source of the events.
        events: Port of the events, 0: any free port.
        replay: Port of replay requests, 0: any free port; ``None``: no replay.
        buffer: Number of batches kept for replay.
        topic: First frame of each message.
        with_topic: Replies to replay requests have the topic, as in vLLM 0.32.0 (recorded in
            ``tests/contract/fixtures/vllm-0.32.0/replay.jsonl``); earlier releases had none.
    """

    def __init__(
        self,
        cache: KvCache,
        events: int = 0,
        replay: int | None = 0,
        *,
        buffer: int = 10_000,
        topic: str = "kv@r1@m",
        with_topic: bool = True,
    ) -> None:
        self.cache = cache
        self._ports = events, replay
        self._topic = topic.encode()
        self._with_topic = with_topic
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._number = 0
        self.asked: list[int] = []
        """Start sequence numbers of replay requests."""

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        # XPUB is a PUB socket on the wire that also receives subscriptions.
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.linger = 0
        self._pub.bind(f"tcp://127.0.0.1:{self._ports[0] or '*'}")
        self.address = self._pub.last_endpoint.decode()
        self.replay: str | None = None
        self._task: asyncio.Task[None] | None = None
        if self._ports[1] is not None:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.linger = 0
            self._router.bind(f"tcp://127.0.0.1:{self._ports[1] or '*'}")
            self.replay = self._router.last_endpoint.decode()
            self._task = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._context.destroy(linger=0)

    async def subscribed(self) -> None:
        """Wait for a subscription; events published before it are lost."""
        while not (await self._pub.recv()).startswith(SUBSCRIBES):
            pass

    async def publish(self, *, lose: bool = False) -> None:
        """Publish the events since the last call; with ``lose``, drop them."""
        batch = self.cache.batch()
        self._buffer.append((self._number, batch))
        if not lose:
            await self._pub.send_multipart([self._topic, self._number.to_bytes(8, "big"), batch])
        self._number += 1

    async def send_raw(self, *parts: bytes) -> None:
        """Publish raw message parts."""
        await self._pub.send_multipart(parts)

    async def _serve(self) -> None:
        while True:
            client, _, number = await self._router.recv_multipart()
            first = int.from_bytes(number, "big")
            self.asked.append(first)
            topic, ended = ([self._topic], [b""]) if self._with_topic else ([], [])
            head = [client, b""]
            for each, batch in list(self._buffer):
                if each >= first:
                    number = each.to_bytes(8, "big")
                    await self._router.send_multipart([*head, *topic, number, batch])
            await self._router.send_multipart([*head, *ended, END, b""])
