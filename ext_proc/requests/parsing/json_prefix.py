"""Parses JSON objects, whole or cut off at any byte.

orjson parses a whole body. Of a body that was read in part (or is too costly, see
``budget``), at most ``MAX_CUT_BYTES`` are read: this module finds the longest prefix that
can be closed into a valid document, closes it and passes it to orjson. Complete members are kept. A
text that is cut off is kept as ``CutText``. A key without its value, and a number that may be
incomplete (``12`` may be the start of ``123``), are dropped. Everything after the cut is unknown;
nothing else is lost.

Nothing here walks the text in Python. The cut usually falls into the prompt, whose place in the
document follows from the key before it: the document is closed there on a guess, and orjson, the
fastest scanner available, validates the guess. The closing text begins with a quote, so it is valid
only if the cut is in a text, and only with the brackets that are open: what orjson accepts is
right. Otherwise the text is split at its quotes, the pieces outside of texts are stripped to their
brackets, and matching pairs are removed. The remaining brackets are those open at the cut.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

import orjson

from ext_proc.requests.parsing.budget import (
    MAX_CONTAINERS,
    MAX_CUT_BYTES,
    is_affordable,
    too_complex,
)
from ext_proc.requests.parsing.cut_text import CutText
from ext_proc.requests.parsing.errors import BadRequest, UnsoundRequest
from ext_proc.routing.values.refusal import RefusalKind

MAX_DEPTH: Final = 100
"""Maximum depth of a document that is cut off. Newer versions of Triton reject deeper nesting too;
2.51 reads tensors of 10,000 levels, and those of 100,000 end it."""

MAX_WHOLE_DEPTH: Final = 1024
"""Maximum depth of a whole document: orjson's."""

_TOO_DEEP: Final = "depth limit exceeded"
"""How orjson's error begins."""

_BRACKETS: Final = (b"{", b"}", b"[", b"]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_CLOSERS: Final = bytes.maketrans(b"{[", b"}]")
_PAIR: Final = {ord("{"): ord("}"), ord("["): ord("]")}
_WALKED: Final = 4096
"""Brackets among which depth is looked for where there are too many."""
_ROUNDS: Final = 6
"""Levels of closed brackets removed by ``replace``, before the rest is walked."""

_BACKSLASH: Final = ord("\\")
_ESCAPED_QUOTES: Final = 64
"""Maximum escaped quotes at the end that a guess skips."""
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
"""Closing text by key before the cut text: generate, completions, chats (parts too), tensors."""

_ESCAPE_TAIL: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HIGH_SURROGATE_TAIL: Final = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_LONGEST_ESCAPE: Final = 6
_NODES: Final = (dict, list)  # a union in `isinstance` would be built anew at each call
_UTF8_LEAD: Final = 0xC0
_UTF8_CONTINUATION: Final = 0x80


class Document(NamedTuple):
    """A JSON object, as far as it was read."""

    members: dict[str, Any]
    whole: bool
    """Nothing is missing at its end."""

    def is_cut(self, key: str) -> bool:
        """Return whether the value of ``key`` may continue beyond what was read."""
        return not self.whole and next(reversed(self.members), None) == key


def read_object(body: bytes | memoryview, *, complete: bool, place: str) -> Document:
    """Read a JSON object.

    Args:
        body: The bytes, or the first part of them.
        complete: Whether ``body`` is the whole document.
        place: Name of the body in error messages.

    Returns:
        Its members. Strings that are cut off are ``CutText``.

    Raises:
        BadRequest: It is not valid JSON or not an object.
        UnsoundRequest: It nests too deeply, or has too many arrays and objects.
    """
    if complete and is_affordable(body):
        return Document(_parse(body, place), whole=True)
    head = bytes(body[:MAX_CUT_BYTES])
    start = head.lstrip()[:1]
    if start != b"{":
        if complete or start:
            raise BadRequest(f"{place} must be a JSON object")
        return Document({}, whole=False)
    counted = complete and len(body) <= MAX_CUT_BYTES  # and found to be too much
    members = _guess(head) if not counted and is_affordable(head) else None
    if members is not None:
        _mark_last_text(members)
        return Document(members, whole=False)
    closed, whole, in_text = _close(head, place)
    members = _parse(closed, place)
    if in_text:
        _mark_last_text(members)
    return Document(members, whole)


def check_repeats(body: bytes, key: bytes, most: int, place: str) -> None:
    """Check a whole document, in which ``key`` is expected ``most`` times, for repeated keys.

    Of a key that an object has twice Triton takes the first value, and orjson the last.

    Raises:
        UnsoundRequest: ``key`` occurs more often, and an object repeats a key.
    """
    quoted, end = b'"' + key + b'"', len(body)
    for _ in range(most + 1):  # from the end: four times as fast as counting
        end = body.rfind(quoted, 0, end)
        if end < 0:
            return

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise UnsoundRequest(RefusalKind.BAD_SHAPE, f"{place} has an object that repeats a key")
        return members

    try:
        json.loads(body, object_pairs_hook=check)
    except RecursionError:
        raise _too_deep(place, MAX_DEPTH) from None


def _parse(text: bytes | memoryview, place: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith(_TOO_DEEP):
            raise _too_deep(place, MAX_WHOLE_DEPTH) from None
        raise BadRequest(f"{place} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest(f"{place} must be a JSON object")
    return value


def _guess(data: bytes) -> dict[str, Any] | None:
    """Return the members if the cut falls into a text after a known key, else ``None``."""
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

    With escaped quotes masked, the pieces between quotes alternate between syntax and text.
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
        # After the last text only a number, a word or nothing: that text is a value, or a key to
        # drop.
        last = 0
        if b":" in pieces[-1] or not _precedes_value(pieces[-3], in_array=in_array):
            start -= len(pieces[-2]) + len(pieces[-3]) + 2
            last = _last_safe(pieces[-3]) or 0
    return data[: start + last] + tail, False, False


def _open_brackets(plain: bytes, place: str) -> bytes:
    """Return the brackets of ``plain`` that are still open at its end."""
    brackets = plain.translate(None, _NO_BRACKETS)
    if len(brackets) > 2 * MAX_CONTAINERS:
        if _nests_deeper(brackets[:_WALKED], MAX_DEPTH):
            raise _too_deep(place, MAX_DEPTH)
        raise too_complex(
            f"{place} has more than {MAX_CONTAINERS} arrays and objects; send it flatter"
        )
    for _ in range(_ROUNDS):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    left = bytearray()
    for bracket in brackets:
        if bracket in b"{[":
            if len(left) >= MAX_DEPTH:
                raise _too_deep(place, MAX_DEPTH)
            left.append(bracket)
        elif not left or _PAIR[left.pop()] != bracket:
            raise BadRequest(f"{place} is not valid JSON: unexpected {chr(bracket)}")
    return bytes(left)


def _nests_deeper(brackets: bytes, most: int) -> bool:
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"{[" else -1
        if depth > most:
            return True
    return False


def _too_deep(place: str, most: int) -> UnsoundRequest:
    return UnsoundRequest(RefusalKind.TOO_DEEP, f"{place} nests deeper than {most} levels")


def _precedes_value(plain: bytes, *, in_array: bool) -> bool:
    """Return whether a text after ``plain`` is a value (and not a key)."""
    return in_array or plain.rstrip().endswith(b":")


def _last_safe(plain: bytes) -> int | None:
    """Return the last offset where the document can be closed: at a comma or after a bracket."""
    comma = plain.rfind(b",")
    bracket = max(map(plain.rfind, _BRACKETS))
    last = max(comma, bracket + 1 if bracket >= 0 else -1)
    return None if last < 0 else last


def _text_end(data: bytes, start: int) -> int:
    """Return where the text from ``start`` may be closed: after its last complete character."""
    end = len(data)
    # A UTF-8 character has at most three continuation bytes.
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
            # After an even number of backslashes this is an escape; after an odd number it is not.
            if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
                end = found.start()
    return end


def _mark_last_text(members: dict[str, Any]) -> None:
    """Convert the last value's last text, which is cut off, to ``CutText``."""
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
