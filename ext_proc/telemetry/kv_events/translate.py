"""From an engine's events to changes of the prefix index: its blocks under our hashes. Pure.

The engine's hashes say nothing to us, but its events carry the tokens: behind a known parent each
block's own hash is computed as for a request's prompt (``requests.blocks``). So requests match what
the engine holds if their token ids are the same and the blocks are of the same size.

Rules:

1. Only what serves a prompt from GPU memory counts: blocks of another medium, and of groups whose
   attention is not over the whole prompt (sliding windows), are passed over, their removals too.
2. Passed over and counted by reason: blocks behind an unknown parent (``orphan``), of another size
   (``size``), with keys that no request tells us, such as pictures (``key``), and with them all
   blocks behind these.
3. The chain begins from model, adapter and cache salt, as a request's does. An adapter that the
   pool serves as a model of its own is one.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

from ext_proc.requests.blocks import continued, root_of
from ext_proc.requests.tokens import ID_BYTES
from ext_proc.routing.cache.exact_index import CacheEvent, Cleared, Removed, Stored
from ext_proc.telemetry.kv_events.events import AllBlocksCleared, BlockStored

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.telemetry.kv_events.events import KvEvent

MAX_GROUPS: Final = 64
"""KV cache groups of one model that are told apart."""
_WHOLE: Final = frozenset({None, "full_attention", "mla_attention"})
_GPU: Final = frozenset({None, "GPU"})
_UNSIGNED: Final = 2**64 - 1


class Translator:
    """One engine's events.

    Args:
        endpoint: Whose engine it is.
        engine: Which of its engines.
        model: The model that it serves, as requests name it.
        models: All models that the pool serves.
        block_tokens: Tokens in a block of the pool's prompts.
        block: Finds our hash of a block by its name (``ExactIndex.block``).
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
    ) -> None:
        self._endpoint = endpoint
        self._engine = engine
        self._model = model
        self._models = models
        self._block_tokens = block_tokens
        self._block = block
        self._partial: set[int | None] = set()
        """Groups that do not look at the whole prompt."""
        self.passed: Counter[str] = Counter()
        """Blocks passed over, by reason."""
        self.other_size: int | None = None
        """The block size that was last seen and is not the pool's."""

    def take(self, event: KvEvent) -> CacheEvent | None:
        """Return what an event changes, ``None`` where it is nothing."""
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, AllBlocksCleared):
            return self.cleared()
        if event.medium not in _GPU or event.group in self._partial:
            return None
        return Removed(self._endpoint, self._engine, event.names)

    def cleared(self) -> Cleared:
        """Return that nothing is known of the engine's cache any more."""
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
            return root_of(adapter, None, salt)
        return root_of(self._model, adapter, salt)

    def _plain(self, event: BlockStored) -> tuple[int, str | None]:
        """Return how many first blocks depend on what requests tell, and their cache salt."""
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
