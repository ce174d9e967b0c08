"""The tokens of chats, where a pool's chat template is known.

Rules:

1. A chat that was read whole is rendered and tokenized, and so has the blocks of the ids that its
   engine computes. Of a chat with media the part before the first counts.
2. What cannot be rendered within the template's bounds, or is not covered by ``conversations``, has
   the blocks of chats without a template.
3. Engines are asked now and then for the ids of a chat (``note``). While more than a quarter of the
   last ``WINDOW`` answers differ from the ids here, no chat is rendered but the next one to ask
   about: the template or the tokenizer is not the engine's. A few clients with unusual chats
   therefore do not end the others' exactness.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ext_proc.requests.blocks import MAX_BLOCKS, Blocks, chained
from ext_proc.requests.conversations import MEDIA, conversation
from ext_proc.routing.values.scale import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.requests.pieces import Ids, Pieces
    from ext_proc.routing.values.request import Features

WINDOW: Final = 16
MAX_SAMPLE_TOKENS: Final = 16_384
"""Longer chats are not asked about, nor such with media, which an engine would fetch."""


class ChatTemplate(Protocol):
    """A template that renders in bounded time and space."""

    parts: bool
    """It reads contents as lists of parts."""
    developers: bool
    """It knows the role ``developer``."""

    def render(self, variables: Mapping[str, Any]) -> str | None:
        """Return the text; ``None`` if it fails or goes beyond a bound."""


class Sample(NamedTuple):
    """A chat to ask an engine about."""

    members: Mapping[str, Any]
    ids: Ids


class Chats:
    """The chats of one pool; the module states the rules.

    Args:
        template: The pool's template.
        pieces: The pool's tokenizer.
    """

    def __init__(self, template: ChatTemplate, pieces: Pieces) -> None:
        self._template = template
        self._pieces = pieces
        self._answers: deque[bool] = deque(maxlen=WINDOW)
        self._wanted = False
        self._sample: Sample | None = None
        self.exact = self.other = self.agreed = self.differed = 0

    @property
    def trusted(self) -> bool | None:
        """Whether engines agree; ``None`` = none has answered yet, and chats are rendered."""
        if not self._answers:
            return None
        return 4 * self._answers.count(False) <= len(self._answers)

    def ids(self, members: Mapping[str, Any]) -> Ids | None:
        """Return the ids of a chat, as far as they are known; ``None`` = it is not covered."""
        found = conversation(
            members, parts=self._template.parts, developers=self._template.developers
        )
        text = None if found is None else self._template.render(found.variables)
        if found is None or text is None:
            return None
        if found.media:
            text, cut, _ = text.partition(MEDIA)
            if not cut:
                return None
        return self._pieces.encode(text, partial=found.media)

    def blocks(self, features: Features, block_tokens: int, seed: int) -> Blocks | None:
        """Return the blocks of a chat; ``None`` = by its canonical bytes (rules 2 and 3).

        Args:
            features: Features of the request with its ``chat``.
            block_tokens: Tokens in a block, at least 1.
            seed: The fleet's seed, below ``2 ** 64``.
        """
        members = features.chat
        believed = self.trusted is not False
        if members is None or not (believed or self._wanted):
            self.other += 1
            return None
        ids = self.ids(members)
        if ids and self._wanted and ids.whole and ids.tokens <= MAX_SAMPLE_TOKENS:
            self._wanted, self._sample = False, Sample(members, ids)
        if ids is None or not believed:
            self.other += 1
            return None
        self.exact += 1
        packed, tokens = ids.packed, ids.tokens
        if features.truncation is not None and tokens > features.truncation.tokens:
            most = features.truncation.tokens
            if not ids.whole:
                return Blocks((), float(block_tokens), most)
            size = most * ID_BYTES
            packed = packed[-size:] if features.truncation.left else packed[:size]
            tokens = most
        packed = packed[: MAX_BLOCKS * block_tokens * ID_BYTES]
        hashes = chained(features, packed, block_tokens * ID_BYTES, seed=seed)
        return Blocks(hashes, float(block_tokens), tokens, chat=ids.whole)

    # --- Asking engines ---------------------------------------------------------------------------

    def want_sample(self) -> None:
        """Keep the next chat for `take_sample`."""
        self._wanted = True

    def take_sample(self) -> Sample | None:
        """Return the chat that was kept, once."""
        sample, self._sample = self._sample, None
        return sample

    def note(self, ids: Ids, engines: list[int]) -> bool:
        """Compare ids with the engine's for the same chat; return whether they agree."""
        equal = self.equal(ids, engines)
        self.answered(equal=equal)
        return equal

    @staticmethod
    def equal(ids: Ids, engines: list[int]) -> bool:
        """Return whether ids are the engine's for the same chat."""
        try:
            packed = struct.pack(f"<{len(engines)}I", *engines)
        except struct.error:
            packed = b""
        return packed == ids.packed if ids.whole else packed.startswith(ids.packed)

    def answered(self, *, equal: bool) -> None:
        """Note whether an engine has the tokens of a chat that are known here."""
        self._answers.append(equal)
        if equal:
            self.agreed += 1
        else:
            self.differed += 1

    def describe(self) -> dict[str, Any]:
        """Return the state for ``/debug/state``."""
        trusted = self.trusted
        return {
            "template": "unchecked" if trusted is None else "agrees" if trusted else "differs",
            "checks": {"agreed": self.agreed, "differed": self.differed},
            "chats": {"exact": self.exact, "approximate": self.other},
            "cached_bytes": self._pieces.cached_bytes,
        }
