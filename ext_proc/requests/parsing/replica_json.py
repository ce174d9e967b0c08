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
2. What these parsers of today do otherwise than the replica's is undone in the text: RapidJSON's
   successors reject an escaped low surrogate, a number that is too large for a double but has a
   small exponent, and ``NaN.5``, which 1.1.0 takes. A document of more than ``MAX_REPAIRED`` bytes
   or ``MAX_REPAIRED_QUOTES`` is not repaired but refused: Triton may act on it.
3. In texts, bytes that are no UTF-8 become U+FFFD: no name or key that is read has any.

Source: RapidJSON's ``reader.h`` and ``encodedstream.h`` of 1.1.0, tried on Triton 2.51.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import rapidjson

from ext_proc.requests.parsing.budget import (
    MAX_REPAIRED,
    MAX_REPAIRED_QUOTES,
    MAX_SECOND_BYTES,
    MAX_SECOND_UNITS,
    too_complex,
)
from ext_proc.requests.parsing.errors import Malformed, UnsoundRequest
from ext_proc.routing.values.refusal import RefusalKind

MAX_DEPTH: Final = 1000
"""The depth that RapidJSON's binding reads (Python's limit of recursion); ``json``'s is near it."""

_BOM: Final = re.compile(rb"\xef?\xbb?\xbf?")
_CANDIDATES: Final = tuple(
    map(
        re.compile,
        (r"\\u[dD][c-fC-F]", r"NaN[.eE]", r"Inf(?:inity)?[.eE]", r"[eE]\+?0*[0-9]{3}"),
    )
)
"""What may need rule 2; one by one, as each is found by its beginning."""
_TOKEN: Final = re.compile(
    r'(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))'
    r"|(?P<word>NaN|Inf(?:inity)?)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?"
    r"|(?<![0-9.])-?[0-9]++(?:\.(?P<fraction>[0-9]++))?+[eE]\+?(?P<exponent>[0-9]{3,})",
    re.DOTALL,
)
"""Linear in the text: no part of it is tried from two places, nor given back."""
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
_MAX_EXPONENT: Final = 308


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
        UnsoundRequest: It nests too deeply, or Triton may take it but it is too long to repair.
    """
    readable = text.decode("utf-8", "replace")
    try:
        return _parse(readable, place)
    except Malformed as error:
        if not any(each.search(readable) is not None for each in _CANDIDATES):
            raise
        if len(text) > MAX_REPAIRED or readable.count('"') > MAX_REPAIRED_QUOTES:
            message = f"{error.message}, unless it is shorter and for Triton"
            raise too_complex(message) from None
    return _parse(_TOKEN.sub(_as_now, readable), place)


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
        return _loads(readable)
    except RecursionError:
        raise too_deep(place, MAX_DEPTH) from None
    except ValueError as error:
        raise Malformed(f"{place} is not valid JSON: {error}") from None


def too_deep(place: str, most: int) -> UnsoundRequest:
    """Return the error for a document of more than ``most`` levels."""
    return UnsoundRequest(RefusalKind.TOO_DEEP, f"{place} nests deeper than {most} levels")


def _as_now(found: re.Match[str]) -> str:
    """Return a token of RapidJSON 1.1.0 as later versions take it (rule 2)."""
    whole = found[0]
    if found["text"] is not None:
        return _LOW_SURROGATE.sub(_replaced, whole) if "\\u" in whole else whole
    if found["word"] is not None:
        return found["word"]
    exponent, fraction = found["exponent"].lstrip("0"), found["fraction"] or ""
    fits_now = len(exponent) <= len(str(_MAX_EXPONENT)) and (
        int(exponent or "0") <= _MAX_EXPONENT + len(fraction)
    )
    return "1e300" if fits_now else whole


def _replaced(found: re.Match[str]) -> str:
    return found[0] if found["low"] is None else "\\ufffd"
