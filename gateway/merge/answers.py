"""What replicas answered, and which of it counts. Pure.

Rules:

1. Good answers count: HTTP 200 and gRPC OK. Where there are none, the error that most replicas gave
   is the answer, of equally many that of the first replica; it is passed on as it came.
2. A replica that gave no usable answer has a *fault* in one word; that is no answer.
3. The note names at most ``MAX_NAMED`` replicas and has at most ``MAX_NOTE`` characters.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Fault = Literal["timeout", "unreachable", "too-large", "malformed"]

MAX_NAMED: Final = 32
MAX_NOTE: Final = 2048
_MAX_ID: Final = 128


class Said(NamedTuple):
    """What one replica said."""

    replica: str
    """Its endpoint id."""
    status: int = 0
    """HTTP status, or number of the gRPC status."""
    body: bytes = b""
    """Body, or message."""
    text: str = ""
    """Content type over HTTP; details of a gRPC error."""
    fault: Fault | None = None
    """Why there is no answer."""
    good: bool = False


def good_of(said: Iterable[Said]) -> list[Said]:
    """Return the good answers."""
    return [each for each in said if each.good and each.fault is None]


def usual_error(said: Sequence[Said]) -> Said | None:
    """Return the error of most replicas; ``None`` if none answered."""
    answered = [each for each in said if each.fault is None]
    if not answered:
        return None
    counts = Counter((each.status, each.body, each.text) for each in answered)
    # Of equal counts the first one met is first.
    ((chosen, _),) = counts.most_common(1)
    return next(each for each in answered if (each.status, each.body, each.text) == chosen)


def note(said: Sequence[Said], words: Mapping[str, str], unasked: int = 0) -> str:
    """Return ``good/asked``, then each replica with a word of its own: ``2/3; r3=timeout``.

    Args:
        said: What the replicas said.
        words: Further words by replica, such as ``differs``.
        unasked: Number of replicas that were not asked.
    """
    told = {each.replica: word for each in said if (word := _word(each, words)) is not None}
    parts = [f"{len(good_of(said))}/{len(said) + unasked}"]
    named = [f"{name[:_MAX_ID]}={word}" for name, word in list(told.items())[:MAX_NAMED]]
    if len(told) > MAX_NAMED:
        named.append(f"more={len(told) - MAX_NAMED}")
    if unasked:
        named.append(f"unasked={unasked}")
    if named:
        parts.append(", ".join(named))
    return "; ".join(parts)[:MAX_NOTE]


def _word(said: Said, words: Mapping[str, str]) -> str | None:
    if said.fault is not None:
        return said.fault
    return words.get(said.replica) or (None if said.good else "refuses")
