"""The bytes that describe a pick to Envoy's access log, from cached parts. Pure.

A reply is cached by all that few values occur of; the ticket and two counts of tokens are put into
places of fixed size. Numbers of a ``google.protobuf.Value`` are doubles, so that each has 8 bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from tidegate_api.names import TOLD_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.exchange import Pick

MAX_FRAMES: Final = 4096
"""Maximum cached replies; when full, the cache is cleared."""
_DOUBLE: Final = Struct("<d")
_PROMPT: Final = -1.2345678901234567e-301
_PREDICTED: Final = -1.3456789012345678e-302
"""No counts: the bytes by which the places of the counts are found."""


class DescribedFrames:
    """The cached replies.

    Args:
        sign: Returns the reply for a part (of the request) and a ticket, whose bytes may occur
            several times, with what a function writes into the metadata's fields.
    """

    def __init__(self, sign: Callable[[str, str, bool, str, Callable[[Any], None]], bytes]) -> None:
        self._sign = sign
        self._frames: dict[tuple[object, ...], tuple[bytes | int, ...]] = {}

    def __len__(self) -> int:
        """Return the number of cached replies."""
        return len(self._frames)

    def write(self, part: str, pick: Pick, ticket: str, named: str) -> bytes:
        """Return the reply.

        Args:
            part: The part of the request that it answers.
            pick: The pick.
            ticket: Its ticket.
            named: Name of the pool for access logs of generic proxies; empty for others.
        """
        decision, prompt = pick.decision, pick.prompt_tokens
        key = (
            *(part, len(ticket), pick.unreadable, named, prompt is None),
            *(decision.pool, decision.variant, decision.reason),
        )
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frame(part, pick, len(ticket), named)
            if len(self._frames) >= MAX_FRAMES:
                self._frames.clear()
            self._frames[key] = frame
        values = (ticket.encode(), _DOUBLE.pack(prompt or 0), _DOUBLE.pack(pick.matched_tokens))
        return b"".join([values[each] if isinstance(each, int) else each for each in frame])

    def _frame(self, part: str, pick: Pick, length: int, named: str) -> tuple[bytes | int, ...]:
        decision, prompt = pick.decision, pick.prompt_tokens

        def describe(fields: Any) -> None:
            told = fields[TOLD_KEY].struct_value.fields
            told["pool"].string_value = decision.pool
            told["variant"].string_value = decision.variant
            told["reason"].string_value = decision.reason
            if prompt is not None:
                told["prompt_tokens"].number_value = _PROMPT
                told["predicted_tokens"].number_value = _PREDICTED

        # The ticket is where two messages differ whose tickets differ in each byte.
        one, other = (
            self._sign(part, digit * length, pick.unreadable, named, describe) for digit in "01"
        )
        places = [at for at, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
        holes = [(places[at], length, 0) for at in range(0, len(places), length)]
        if prompt is not None:
            holes.append((one.index(_DOUBLE.pack(_PROMPT)), _DOUBLE.size, 1))
            holes.append((one.index(_DOUBLE.pack(_PREDICTED)), _DOUBLE.size, 2))
        frame: list[bytes | int] = []
        end = 0
        for begin, size, value in sorted(holes):
            frame += [one[end:begin], value]
            end = begin + size
        return (*frame, one[end:])
