"""Translates an engine's events to changes of the prefix index, with our own block hashes. Pure.

The engine's hashes are opaque, but its events carry the tokens: after a known parent each block's
own hash is computed as for a request's prompt (``requests.blocks``). So requests match the engine's
blocks if token ids and block size are the same.

Rules:

1. Only blocks that serve a prompt from GPU memory count. Blocks of another medium, and of groups
   whose attention does not cover the whole prompt (sliding windows), are ignored, and so are their
   removals.
2. Ignored and counted by reason are also: blocks after an unknown parent (``orphan``), blocks of
   another size (``size``), and blocks with keys that no request contains, such as pictures
   (``key``), including all blocks after them.
3. The chain begins with model, adapter and cache salt, as for a request. An adapter that the pool
   serves as a model of its own is treated as a model.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

from ext_proc.requests.blocks import continued, root_of
from ext_proc.routing.cache.index_events import CacheEvent, Cleared, Removed, Stored
from ext_proc.routing.values.scale import ID_BYTES
from ext_proc.telemetry.kv_events.events import AllBlocksCleared, BlockStored

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.telemetry.kv_events.events import KvEvent

MAX_GROUPS: Final = 64
"""Maximum KV cache groups of one model that are distinguished."""
_WHOLE: Final = frozenset({None, "full_attention", "mla_attention"})
_GPU: Final = frozenset({None, "GPU"})
_UNSIGNED: Final = 2**64 - 1


class Translator:
    """Translator of one engine's events.

    Args:
        endpoint: Endpoint of the engine.
        engine: Number of the engine within the endpoint.
        model: The served model, as requests name it.
        models: All models that the pool serves.
        block_tokens: Tokens in a block of the pool's prompts.
        block: Returns our hash of a block by the engine's hash (``EngineReports.block``).
        seed: The fleet's seed of prompt hashes.
    """

    def __init__(
        self,
        endpoint: EndpointKey,
        engine: int,
        *,
        model: str,
        models: Container[str],
        block_tokens: int,
        block: Callable[[EndpointKey, int, int], int | None],
        seed: int = 0,
    ) -> None:
        self._endpoint = endpoint
        self._engine = engine
        self._model = model
        self._models = models
        self._block_tokens = block_tokens
        self._block = block
        self._seed = seed
        self._partial: set[int | None] = set()
        """Groups whose attention does not cover the whole prompt."""
        self.passed: Counter[str] = Counter()
        """Ignored blocks, by reason."""
        self.other_size: int | None = None
        """The last seen block size that differs from the pool's."""

    def take(self, event: KvEvent) -> CacheEvent | None:
        """Return the change that an event causes, ``None`` if there is none."""
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, AllBlocksCleared):
            return self.cleared()
        if event.medium not in _GPU or event.group in self._partial:
            return None
        return Removed(self._endpoint, self._engine, event.names)

    def cleared(self) -> Cleared:
        """Return the change that discards the engine's known cache content."""
        return Cleared(self._endpoint, self._engine)

    def _stored(self, event: BlockStored) -> Stored | None:
        if event.kind not in _WHOLE and len(self._partial) < MAX_GROUPS:
            self._partial.add(event.group)
        if event.medium not in _GPU or event.kind not in _WHOLE or event.group in self._partial:
            self.passed["kind"] += len(event.names)
            return None
        size = self._block_tokens
        if event.block_size != size:
            self.other_size = event.block_size
            self.passed["size"] += len(event.names)
            return None
        count, salt = self._plain(event)
        if count < len(event.names):
            self.passed["key"] += len(event.names) - count
        parent = None
        if event.parent is None:
            root = self._root(event.adapter, salt)
        else:
            parent = self._block(self._endpoint, self._engine, event.parent)
            if parent is None:
                self.passed["orphan"] += count
                return None
            root = parent & _UNSIGNED
        if not count:
            return None
        ids = event.token_ids[: count * size]
        packed = struct.pack(f"<{len(ids)}I", *ids)
        blocks = continued(root, packed, size * ID_BYTES, count)
        return Stored(self._endpoint, self._engine, event.names[:count], blocks, parent)

    def _root(self, adapter: str | None, salt: str | None) -> int:
        if adapter is not None and adapter in self._models:
            return root_of(adapter, None, salt, self._seed)
        return root_of(self._model, adapter, salt, self._seed)

    def _plain(self, event: BlockStored) -> tuple[int, str | None]:
        """Return the number of leading blocks that requests can match, and their cache salt."""
        if event.extra_keys is None:
            return len(event.names), None
        salt: str | None = None
        for at, keys in enumerate(event.extra_keys):
            others = [key for key in keys if key != event.adapter]
            if at == 0 and event.parent is None and len(others) == 1 and isinstance(others[0], str):
                salt = others[0]
            elif others:
                return at, salt
        return len(event.names), salt
