"""JSON objects, whole or cut off anywhere.

A whole body is parsed by orjson. Of a body that was read in part (or is too costly, see
``MAX_JSON_BYTES``), at most ``MAX_CUT_BYTES`` are looked at: this module finds the longest prefix
that can be closed into a valid document, closes it and gives that to orjson. Complete members stay,
the text in which the cut fell stays as ``CutText``, and a key without its value or a number without
its end (``12`` may be the start of ``123``) is dropped. What comes after the cut is unknown;
nothing else is lost.

Nothing here walks the text in Python. The cut usually falls into the prompt, whose place is known
from the key before it: the document is closed there on a guess, and orjson, the fastest scanner at
hand, is the judge. A guess begins with a quote, so it can only be valid where the cut is in a text,
and only with the brackets that are open: what orjson accepts is right. Otherwise the text is split
at its quotes, what lies outside of texts is stripped to its brackets, pairs are taken away, and
what is left is what is open at the cut.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import orjson

from ext_proc.requests.parsing.cut_text import CutText
from ext_proc.requests.parsing.errors import BadRequest

MAX_JSON_BYTES: Final = 4 * 2**20
"""Whole JSON beyond this is read as a cut one."""

MAX_CUT_BYTES: Final = 128 * 2**10
"""Of a cut document is read no more: what Envoy sends at most in ``peek``."""

MAX_OPENERS: Final = 16_384
"""Opening brackets of one kind in a document longer than ``MAX_CUT_BYTES``; with more it is read as
a cut one. An object or array costs a third of a microsecond, the collector's work included, a byte
of text a thousandth of that: so this and the next bound hold reading below about 20 ms."""

MAX_COMMAS: Final = 100_000
"""The same for commas, in a document longer than ``MAX_FREE_COMMAS_BYTES``."""

MAX_FREE_COMMAS_BYTES: Final = 2**20

MAX_DEPTH: Final = 100
"""Triton refuses deeper nesting too."""

_BRACKETS: Final = (b"{", b"}", b"[", b"]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_CLOSERS: Final = bytes.maketrans(b"{[", b"}]")
_PAIR: Final = {ord("{"): ord("}"), ord("["): ord("]")}
_ROUNDS: Final = 6
"""Levels of closed brackets that are taken away by ``replace``, before the rest is walked."""

_BACKSLASH: Final = ord("\\")
_ESCAPED_QUOTES: Final = 64
"""Escaped quotes at the end that a guess passes."""
_KEY_REACH: Final = 64
_KEY_BEFORE: Final = re.compile(rb'"([a-z_]{1,16})"[ \n]{0,9}:[ \n]{0,9}(\[?)[ \n]{0,9}"\Z')
_TAILS: Final = {
    (b"content", b""): b'"}]}',
    (b"text", b""): b'"}]}]}',
    (b"text_input", b""): b'"}',
    (b"prompt", b""): b'"}',
    (b"input", b""): b'"}',
    (b"prompt", b"["): b'"]}',
    (b"input", b"["): b'"]}',
    (b"data", b"["): b'"]}]}',
}
"""What closes a text behind these keys: generate, completions, chats (parts too), tensors."""

_ESCAPE_TAIL: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HIGH_SURROGATE_TAIL: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_LONGEST_ESCAPE: Final = 6
_NODES: Final = (dict, list)  # as a union in `isinstance` would be built anew at each call
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
    if complete and _is_affordable(body):
        return Document(_parse(body, place), whole=True)
    head = bytes(body[:MAX_CUT_BYTES])
    start = head.lstrip()[:1]
    if start != b"{":
        if complete or start:
            raise BadRequest(f"{place} must be a JSON object")
        return Document({}, whole=False)
    members = _guess(head)
    if members is not None:
        _mark_last_text(members)
        return Document(members, whole=False)
    closed, whole, in_text = _close(head, place)
    members = _parse(closed, place)
    if in_text:
        _mark_last_text(members)
    return Document(members, whole)


def _is_affordable(body: bytes | memoryview) -> bool:
    """Tell whether all of a document may be parsed."""
    size = len(body)
    if size <= MAX_CUT_BYTES:
        return True
    if size > MAX_JSON_BYTES:
        return False
    data = bytes(body)
    if _has_more(data, b"[", MAX_OPENERS) or _has_more(data, b"{", MAX_OPENERS):
        return False
    return size <= MAX_FREE_COMMAS_BYTES or not _has_more(data, b",", MAX_COMMAS)


def _has_more(data: bytes, byte: bytes, most: int) -> bool:
    """Tell whether ``byte`` occurs more than ``most`` times; fast where it is rare."""
    find, position = data.find, -1
    for _ in range(most + 1):
        position = find(byte, position + 1)
        if position < 0:
            return False
    return True


def _parse(text: bytes | memoryview, place: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{place} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"{place} must be a JSON object")
    return value


def _guess(data: bytes) -> dict[str, Any] | None:
    """Return the members where the cut falls into a text behind a known key, ``None`` elsewhere."""
    quote = data.rfind(b'"')
    for _ in range(_ESCAPED_QUOTES):
        if quote < 1 or data[quote - 1] != _BACKSLASH:
            break
        quote = data.rfind(b'"', 0, quote)
    found = _KEY_BEFORE.search(data, max(0, quote - _KEY_REACH), quote + 1)
    if found is None:
        return None
    tail = _TAILS.get((found[1], found[2]))
    if tail is None:
        return None
    try:
        value = orjson.loads(data[: _text_end(data, quote + 1)] + tail)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _close(data: bytes, place: str) -> tuple[bytes, bool, bool]:
    """Return ``data`` closed into a document, whether it was whole, and if the cut is in a text.

    With escaped quotes masked, the pieces between quotes are plain and text by turns.
    """
    masked = data
    if b"\\" in data:
        masked = data.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
    pieces = masked.split(b'"')
    open_brackets = _open_brackets(b"".join(pieces[::2]), place)
    if not open_brackets:
        return data, True, False
    tail = open_brackets.translate(_CLOSERS)[::-1]
    in_array = open_brackets.endswith(b"[")
    start = len(data) - len(pieces[-1])
    if len(pieces) % 2 == 0:
        if _precedes_value(pieces[-2], in_array=in_array):
            return data[: _text_end(data, start)] + b'"' + tail, False, True
        pieces.pop()
        start -= 1 + len(pieces[-1])
    last = _last_safe(pieces[-1])
    if last is None:
        # A number, a word or nothing since the last text: that is a value, or a key to drop.
        last = 0
        if b":" in pieces[-1] or not _precedes_value(pieces[-3], in_array=in_array):
            start -= len(pieces[-2]) + len(pieces[-3]) + 2
            last = _last_safe(pieces[-3]) or 0
    return data[: start + last] + tail, False, False


def _open_brackets(plain: bytes, place: str) -> bytes:
    """Return the brackets of ``plain`` that are still open at its end."""
    brackets = plain.translate(None, _NO_BRACKETS)
    if len(brackets) > 2 * MAX_OPENERS:
        raise BadRequest(f"{place} has too many arrays and objects to be read; send it flatter")
    for _ in range(_ROUNDS):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    left = bytearray()
    for bracket in brackets:
        if bracket in b"{[":
            if len(left) >= MAX_DEPTH:
                raise BadRequest(f"{place} nests deeper than {MAX_DEPTH} levels")
            left.append(bracket)
        elif not left or _PAIR[left.pop()] != bracket:
            raise BadRequest(f"{place} is not valid JSON: unexpected {chr(bracket)}")
    return bytes(left)


def _precedes_value(plain: bytes, *, in_array: bool) -> bool:
    """Tell whether a text behind ``plain`` is a value (and no key)."""
    return in_array or plain.rstrip().endswith(b":")


def _last_safe(plain: bytes) -> int | None:
    """Return the last offset where the document can be closed: at a comma or behind a bracket."""
    comma = plain.rfind(b",")
    bracket = max(map(plain.rfind, _BRACKETS))
    last = max(comma, bracket + 1 if bracket >= 0 else -1)
    return None if last < 0 else last


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
        if not isinstance(value, _NODES):
            return
        node = value
