"""Checked conversions of a client's values into features.

Values that identify a request (model, sequence) are strict: a wrong type is a ``BadRequest``, and a
text that is cut off is unknown. All other values are lenient: an unusable one is ``None``, because
the replica validates it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import xxhash

from ext_proc.requests.parsing.cut_text import CutText
from ext_proc.requests.parsing.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NAME_CHARS: Final = 256
"""Bound of a model name, version, adapter or sequence id; Triton's models are directories."""

MAX_SESSION_CHARS: Final = 256
"""Longer session names are replaced by their digest, which is as sticky and is bounded."""

MAX_PROMPT_BYTES: Final = 2**20
"""Maximum bytes of a prompt that are kept; a longer prompt is cut and marked partial."""

_INT64: Final = 2**63
_INT64_DIGITS: Final = 19
_UINT64: Final = 2**64
_STOL: Final = re.compile(r"[ \t-\r]*([+-]?[0-9]+)")


def c_text(text: str) -> str:
    """Return a text as Triton reads it: its API takes C strings, which end at the first NUL."""
    return text.partition("\0")[0] if "\0" in text else text


def version(text: str) -> str:
    """Return a model's version as Triton reads it, by ``std::stol``: of ``" +01x"`` it is ``"1"``.

    What Triton rejects is returned as it is.
    """
    if text.isdecimal() and text.isascii() and text[0] != "0" and len(text) < _INT64_DIGITS:
        return text
    found = _STOL.match(text)
    number = int(found[1]) if found is not None else -1
    return str(number) if 0 <= number < _INT64 else text


def unsigned(value: object) -> object:
    """Return an integer as Triton keeps a sequence id: of 64 bits without a sign."""
    return value % _UINT64 if type(value) is int and -_INT64 <= value < 0 else value


def name(value: object, place: str) -> str | None:
    """Return an identifying text; ``None`` if it is absent, empty or cut off.

    Raises:
        BadRequest: It is not a text, or longer than ``MAX_NAME_CHARS``.
    """
    if value is None or isinstance(value, CutText):
        return None
    if not isinstance(value, str):
        raise BadRequest(f"{place} must be a string, not {json_type(value)}")
    if len(value) > MAX_NAME_CHARS:
        raise BadRequest(f"{place} has {len(value)} characters; use at most {MAX_NAME_CHARS}")
    return value or None


def label(value: object) -> str | None:
    """Return an informative text; ``None`` if it is unusable."""
    if isinstance(value, str) and not isinstance(value, CutText) and value:
        return value[:MAX_NAME_CHARS]
    return None


def session(value: object) -> str | None:
    """Return a session name, as a digest if it is long; ``None`` if it is unusable."""
    if not isinstance(value, str) or isinstance(value, CutText) or not value:
        return None
    if len(value) <= MAX_SESSION_CHARS:
        return value
    return "xxh3:" + xxhash.xxh3_128_hexdigest(value.encode("utf-8", "surrogatepass"))


def sequence_id(value: object, place: str) -> int | str | None:
    """Return a sequence id; ``None`` if it is absent, 0 or empty, which mean no sequence.

    Raises:
        BadRequest: It is neither an integer nor a text of at most ``MAX_NAME_CHARS``.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value or None
    if value is None or isinstance(value, str):
        return name(value, place)
    raise BadRequest(f"{place} must be an integer or a string, not {json_type(value)}")


def announced(headers: Mapping[str, str]) -> int | None:
    """Return the length of a body as its headers announce it; ``None`` if it is unknown."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _INT64_DIGITS else None


def positive(value: object) -> int | None:
    """Return a positive integer below 2**63; ``None`` for everything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _INT64:
        return value
    return None


def sooner(first: float | None, second: float | None) -> float | None:
    """Return the earlier of two deadlines, ``None`` if there is none."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def json_type(value: object) -> str:
    """Name the JSON type of ``value`` for an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
