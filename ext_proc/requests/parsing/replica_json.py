"""Parses JSON by the rules of the replicas' own parsers, where orjson's are others.

orjson takes RFC 8259 only. Replicas take more, and what they take they act on:

* Triton 2.51 has RapidJSON 1.1.0 with ``kParseNanAndInfFlag`` (``triton_json.h``). It reads numbers
  ``NaN``, ``Inf`` and ``Infinity``, skips a byte-order mark or a part of one, ends at a zero byte,
  does not look at the encoding of texts, and takes an escaped low surrogate alone. Of a key that
  an object repeats, escaped or not, the first value counts (``FindMember``).
* Engines with OpenAI's API have Python's ``json``: NaN too, also an escaped surrogate alone, and
  the last value of a key.

Rules:

1. A document is parsed only within bounds of its length and its tokens, ``fits``: at most 2 ms.
2. An escaped low surrogate alone, which RapidJSON's successors reject, is replaced in the text of a
   document with at most ``MAX_ESCAPES``; one with more is refused, because Triton may act on it.
   Numbers beyond a double (``1.8e308``) and the like of ``NaN.5``, which 1.1.0 takes and no client
   writes, make a document invalid here.
3. In texts, bytes that are no UTF-8 become U+FFFD: no name or key that is read has any.

Source: RapidJSON's ``reader.h`` and ``encodedstream.h`` of 1.1.0, tried on Triton 2.51.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import rapidjson

from ext_proc.requests.parsing.budget import (
    MAX_ESCAPES,
    MAX_SECOND_BYTES,
    MAX_SECOND_UNITS,
    too_complex,
)
from ext_proc.requests.parsing.errors import Malformed, UnsoundRequest
from ext_proc.routing.values.refusal import RefusalKind

MAX_DEPTH: Final = 1000
"""The depth that RapidJSON's binding reads (Python's limit of recursion). ``json`` reads about as
deep, and deeper from Python 3.12 on."""

_BOM: Final = re.compile(rb"\xef?\xbb?\xbf?")
_LOW_HALF: Final = re.compile(r"\\u[dD][c-fC-F]")
_LOW_SURROGATE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<low>u[dD][c-fC-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_SURROGATE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<low>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def _pairs() -> list[tuple[str, Any]]:
    return []


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members in order, each with its first value."""
    made = dict(pairs)
    if len(made) != len(pairs):
        made.update(reversed(pairs))
    return made


_Decoder: Any = type(
    "_Decoder",
    (rapidjson.Decoder,),
    {"start_object": staticmethod(_pairs), "end_object": staticmethod(_first_of_each)},
)
_loads: Final = json.loads
_decode: Final = _Decoder(number_mode=rapidjson.NM_NATIVE | rapidjson.NM_NAN)


def fits(text: bytes) -> bool:
    """Return whether a document is within the bounds of this module."""
    if len(text) > MAX_SECOND_BYTES:
        return False
    count = text.count
    units = count(b"[") + 4 * (count(b"{") + count(b":")) + count(b",") // 4
    return units <= MAX_SECOND_UNITS


def as_triton_sees(text: bytes) -> tuple[bytes, bool]:
    """Return the part of a document that Triton's parser looks at, and whether a zero byte ends it.

    It skips a byte-order mark before the document, and takes a zero byte for its end.
    """
    found = _BOM.match(text)
    start = 0 if found is None else found.end()
    end = text.find(b"\0", start)
    if end < 0:
        return text[start:] if start else text, False
    return text[start:end], True


def parse_as_triton(text: bytes, place: str) -> Any:
    """Parse a document that `as_triton_sees` and that `fits`.

    Args:
        text: The document.
        place: Its name in error messages.

    Raises:
        Malformed: Triton cannot parse it either.
        UnsoundRequest: It nests too deeply, or has too many escapes to be repaired.
    """
    readable = text.decode("utf-8", "replace")
    halves = _LOW_HALF.search(readable) is not None
    repaired = halves and readable.count("\\") <= MAX_ESCAPES
    if repaired:
        readable = _LOW_SURROGATE.sub(_replaced, readable)
    try:
        return _parse(readable, place)
    except Malformed as error:
        if repaired or not halves:
            raise
        raise too_complex(f"{error.message}, or has too many escapes") from None


def _parse(text: str, place: str) -> Any:
    try:
        return _decode(text)
    except rapidjson.JSONDecodeError as error:
        raise Malformed(f"{place} is not valid JSON: {error}") from None
    except RecursionError:
        raise too_deep(place, MAX_DEPTH) from None


def parse_as_python(text: bytes, place: str) -> Any:
    """Parse a document that `fits` as engines written in Python do.

    Raises:
        Malformed: They cannot parse it either.
        UnsoundRequest: It nests too deeply.
    """
    try:
        readable = text.decode("utf-8-sig")
        if "\\u" in readable:
            readable = _SURROGATE.sub(_replaced, readable)
        found = _loads(readable)
    except RecursionError:
        raise too_deep(place, MAX_DEPTH) from None
    except ValueError as error:
        raise Malformed(f"{place} is not valid JSON: {error}") from None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _is_deep(found):
        raise too_deep(place, MAX_DEPTH)
    return found


def _is_deep(found: Any) -> bool:
    """Return whether arrays and objects nest in more than ``MAX_DEPTH`` levels."""
    level: list[Any] = [[found]]
    for _ in range(MAX_DEPTH + 1):
        level = [
            each
            for outer in level
            for each in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(each, (list, dict))
        ]
        if not level:
            return False
    return True


def too_deep(place: str, most: int) -> UnsoundRequest:
    """Return the error for a document of more than ``most`` levels."""
    return UnsoundRequest(RefusalKind.TOO_DEEP, f"{place} nests deeper than {most} levels")


def _replaced(found: re.Match[str]) -> str:
    return found[0] if found["low"] is None else "\\ufffd"
