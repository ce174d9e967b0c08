"""The laws that picker and Triton must keep, about one request.

What is longer than the picker reads breaks none: it is sent to one replica once.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.request import Form
from support.readings.json_bodies import INPUTS, WIDTHS
from support.readings.picker import Verdict

if TYPE_CHECKING:
    from support.readings.picker import Reading
    from support.readings.triton import Answer, Seen

_WIDTH_OF: Final = {name: WIDTHS.get(datatype, 4) for name, datatype, _ in INPUTS}
_LABEL_CHARS: Final = 256
"""Longer request ids are cut."""


def broken(reading: Reading, answer: Answer) -> list[str]:
    """Return the laws that are broken, each with what differs."""
    if reading.verdict is Verdict.BEYOND:
        return []
    if answer.died:
        return [f"survival: Triton died of it ({answer.text[:60]})"]
    if answer.seen is None:
        return []
    if reading.verdict is Verdict.REFUSED:
        return [f"refused: {reading.why}: {reading.message[:100]}"]
    if reading.verdict is Verdict.UNREADABLE:
        return [f"unread: {reading.why[:100]}"]
    return differences(reading, answer.seen)


def differences(reading: Reading, seen: Seen) -> list[str]:
    """Return in what a known reading differs from Triton's."""
    features = reading.features
    assert features is not None
    sequence = features.sequence_id or ""
    request_id = (features.request_id or "").encode("utf-8", "surrogatepass")
    label = seen.id.decode("utf-8", "replace")[:_LABEL_CHARS]
    pairs: list[tuple[str, object, object]] = [
        ("model", features.model, seen.model),
        ("version", features.version or seen.version, seen.version),
        ("sequence", sequence, seen.sequence or ""),
        ("start", features.sequence_start, seen.start),
        ("end", features.sequence_end, seen.end),
        ("bytes", features.tensor_bytes, largest(seen)),
        ("id", request_id.decode("utf-8", "replace"), label),
    ]
    if features.form is not Form.HTTP_INFER and features.form is not Form.GRPC_INFER:
        pairs = [each for each in pairs if each[0] != "bytes"]  # generate's inputs have no shapes
    return [
        f"{name}: picker {mine!r}, Triton {its!r}"
        for name, mine, its in pairs
        if mine != its or type(mine) is not type(its)
    ]


def largest(seen: Seen) -> int | None:
    """Return the bytes that the largest input declares, as the picker counts them."""
    sizes = [prod(each.shape) * _WIDTH_OF.get(each.name, 0) for each in seen.inputs]
    return max(sizes, default=None)
