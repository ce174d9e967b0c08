"""JSON objects, whole or cut off anywhere.

A whole body is parsed by orjson. Of a body that was read in part (or is longer than
``MAX_JSON_BYTES``), at most ``MAX_CUT_BYTES`` are looked at: this module finds the longest prefix
that can be closed into a valid document, closes it and gives that to orjson. Complete members stay,
the text in which the cut fell stays as ``CutText``, and a key without its value or a number without
its end (``12`` may be the start of ``123``) is dropped. What comes after the cut is unknown;
nothing else is lost.

Law: at every moment ``safe`` is a position at which the document may be closed with the brackets
that are open; it only moves forward.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import orjson

from ext_proc.requests.errors import BadRequest
from ext_proc.requests.values import CutText

MAX_JSON_BYTES: Final = 4 * 2**20
"""Whole JSON beyond this is read as a cut one: orjson costs milliseconds per MiB of numbers."""

MAX_CUT_BYTES: Final = 256 * 2**10
"""Of a cut document is read no more; the worst text costs a tenth of a microsecond per byte."""

MAX_DEPTH: Final = 100
"""Triton refuses deeper nesting too."""

MAX_TOKENS: Final = 20_000
"""Brackets and strings that are looked at in a cut document."""

_NEXT: Final = re.compile(rb'["\[\]{}]')
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_CLOSER: Final = {b"{": b"}", b"[": b"]"}
_TEXT_REST: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ESCAPE_TAIL: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HIGH_SURROGATE_TAIL: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_LONGEST_ESCAPE: Final = 6
_UTF8_LEAD: Final = 0xC0
_UTF8_CONTINUATION: Final = 0x80


class Document(NamedTuple):
    """An object, as far as it was read."""

    members: dict[str, Any]
    whole: bool
    """Nothing is missing at its end."""

    def is_cut(self, key: str) -> bool:
        """Tell whether the value of ``key`` may go on beyond what was read."""
        return not self.whole and next(reversed(self.members), None) == key


def read_object(body: bytes | memoryview, *, complete: bool, place: str) -> Document:
    """Read a JSON object.

    Args:
        body: The bytes, or the first part of them.
        complete: Whether ``body`` is all there is.
        place: What the body is, for errors.

    Returns:
        Its members. Strings in which the cut fell are ``CutText``.

    Raises:
        BadRequest: It is no valid JSON, or no object, or nests too deep.
    """
    if complete and len(body) <= MAX_JSON_BYTES:
        return Document(_parse(body, place), whole=True)
    head = bytes(body[:MAX_CUT_BYTES])
    closed, whole, in_text = _close(head, place)
    if not closed:
        if complete or head.strip():
            raise BadRequest(f"{place} must be a JSON object")
        return Document({}, whole=False)
    members = _parse(closed, place)
    if in_text:
        _mark_last_text(members)
    return Document(members, whole)


def _parse(text: bytes | memoryview, place: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{place} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"{place} must be a JSON object")
    return value


def _close(data: bytes, place: str) -> tuple[bytes, bool, bool]:
    """Return ``data`` closed into a document, whether it was whole, and if the cut is in a text."""
    outline = _Outline(data, place)
    position = 0
    for _ in range(MAX_TOKENS):
        found = _NEXT.search(data, position)
        outline.plain(position, len(data) if found is None else found.start())
        if found is None or (not outline.closers and found.group() != b"{"):
            break
        position = found.end()
        if data[position - 1] != _QUOTE:
            outline.bracket(found.group(), position)
            if not outline.closers:
                return data, True, False
            continue
        end = _closing_quote(data, position)
        if end < 0:
            if outline.expects_value():
                text = data[: _text_end(data, position)]
                return text + b'"' + outline.tail(), False, True
            break
        position = end + 1
        outline.text(position)
    return data[: outline.safe] + outline.tail(), False, False


def _closing_quote(data: bytes, start: int) -> int:
    """Return where the text that begins at ``start`` ends, -1 where its end is missing."""
    end = data.find(b'"', start)
    if end < 0 or data[end - 1] != _BACKSLASH:
        return end
    found = _TEXT_REST.match(data, start)
    return -1 if found is None else found.end() - 1


class _Outline:
    """Which brackets are open, and up to where the document could be closed."""

    __slots__ = ("_after_colon", "_data", "_place", "closers", "safe")

    def __init__(self, data: bytes, place: str) -> None:
        self.closers: list[bytes] = []
        self.safe = 0
        self._after_colon = False
        self._data = data
        self._place = place

    def tail(self) -> bytes:
        """Return the brackets that close the document."""
        return b"".join(reversed(self.closers))

    def expects_value(self) -> bool:
        """Tell whether a text here would be a value (and no key)."""
        return bool(self.closers) and (self._after_colon or self.closers[-1] == b"]")

    def plain(self, start: int, end: int) -> None:
        """Pass white space, colons, commas, numbers and words: before a comma all is complete."""
        plain = self._data[start:end]
        comma = plain.rfind(b",")
        if comma >= 0 and self.closers:
            self.safe = start + comma
        self._after_colon = plain.endswith(b":") or plain.rstrip().endswith(b":")

    def text(self, end: int) -> None:
        """Pass a text: a value is complete at its end, a key is nothing yet."""
        if self.expects_value():
            self.safe = end
        self._after_colon = False

    def bracket(self, bracket: bytes, end: int) -> None:
        """Pass a bracket: behind it the document may be closed."""
        if bracket in _CLOSER:
            if len(self.closers) >= MAX_DEPTH:
                raise BadRequest(f"{self._place} nests deeper than {MAX_DEPTH} levels")
            self.closers.append(_CLOSER[bracket])
        elif self.closers.pop() != bracket:
            raise BadRequest(f"{self._place} is not valid JSON: unexpected {bracket.decode()}")
        self.safe = end
        self._after_colon = False


def _text_end(data: bytes, start: int) -> int:
    """Return where the text that begins at ``start`` may be closed: behind its last whole char."""
    end = len(data)
    # A character of UTF-8 has at most three continuation bytes.
    for back in range(1, min(4, end - start) + 1):
        byte = data[end - back]
        if byte >= _UTF8_LEAD:
            width = 2 + (byte >= 0xE0) + (byte >= 0xF0)  # noqa: PLR2004 - UTF-8's lead bytes
            end -= back if width > back else 0
            break
        if byte < _UTF8_CONTINUATION:
            break
    for tail in (_ESCAPE_TAIL, _HIGH_SURROGATE_TAIL):
        found = tail.search(data, max(start, end - _LONGEST_ESCAPE), end)
        if found is not None:
            before = data[start : found.start()]
            # An even number of backslashes before it are whole escapes; an odd number escapes it.
            if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
                end = found.start()
    return end


def _mark_last_text(members: dict[str, Any]) -> None:
    """Turn the last value's last text, where the cut fell, into ``CutText``."""
    node: Any = members
    while node:
        key = next(reversed(node)) if isinstance(node, dict) else len(node) - 1
        value = node[key]
        if isinstance(value, str):
            node[key] = CutText(value)
            return
        if not isinstance(value, dict | list):
            return
        node = value
