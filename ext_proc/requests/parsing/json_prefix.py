"""Parses JSON objects, whole or cut off at any byte.

orjson parses a whole body. What it rejects, the replica's own parser decides (``replica_json``). So
it does where an object may repeat a key, of which orjson keeps the last value and Triton the first.
Of a body that was read in part (or is too costly, see ``budget``), at most
``MAX_CUT_BYTES`` are read: this module finds the longest prefix that
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

import re
from enum import Enum
from typing import Any, Final, NamedTuple

import orjson

from ext_proc.requests.parsing.budget import (
    FREE_BYTES,
    MAX_COMMAS,
    MAX_CONTAINERS,
    MAX_CUT_BYTES,
    MAX_JSON_BYTES,
    too_complex,
)
from ext_proc.requests.parsing.cut_text import CutText
from ext_proc.requests.parsing.errors import BadRequest, Malformed
from ext_proc.requests.parsing.replica_json import (
    as_triton_sees,
    fits,
    parse_as_python,
    parse_as_triton,
    too_deep,
)

MAX_DEPTH: Final = 100
"""Maximum depth of a document that is cut off. Newer versions of Triton reject deeper nesting too;
2.51 reads tensors of 10,000 levels, and those of 100,000 end it."""

MAX_WHOLE_DEPTH: Final = 1024
"""Maximum depth of a whole document: orjson's."""

MAX_BLANK_BYTES: Final = 4096
"""A document of which only a first part is read must begin within these bytes: no client writes as
much white space, but one that hides what comes then."""

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

_BOM_START: Final = b"\xef"
_LEAST_HEAD_BYTES: Final = 2048
"""A shorter part of a document is not tried, if the second parser cannot read a longer one."""
_BACKSLASH: Final = ord("\\")
_RARE: Final = 64
"""Occurrences that are found one by one, 10 times as fast per byte as counting."""
_SHORT_BYTES: Final = 4 * 2**10
"""Shorter documents are counted."""
_LEAST_ARRAY: Final = 2
_LEAST_OBJECT: Final = 3
"""Least bytes that each further array, and object, takes: an object has a comma or a key beside it.
So no more than ``MAX_CONTAINERS`` are in 24 KiB, and 36 KiB, but for those that are never closed,
of which a parser reads 1,024."""
_ESCAPED_QUOTES: Final = 64
"""Maximum escaped quotes at the end that a guess skips."""
_FEW_QUOTES: Final = 256
"""Quotes of a document with escapes that are split one by one: `replace` costs 2 ns a byte."""
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
_ONLY_OBJECTS: Final = {dict}
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


_new = tuple.__new__
"""Creates a ``Document`` without the overhead of a named tuple's own constructor."""


class Rules(Enum):
    """Whose rules decide what JSON is."""

    PYTHON = "python"
    """Engines with OpenAI's API: Python's ``json``."""
    TRITON = "triton"


_TRITON: Final = Rules.TRITON


def read_object(
    body: bytes | memoryview, *, complete: bool, place: str, rules: Rules = Rules.PYTHON
) -> Document:
    """Read a JSON object.

    Args:
        body: The bytes, or the first part of them.
        complete: Whether ``body`` is the whole document.
        place: Name of the body in error messages.
        rules: The rules of the replica that will read it.

    Returns:
        Its members. Strings that are cut off are ``CutText``. Of a whole document that is beyond
        the bounds of a reader only a first part is read, or nothing.

    Raises:
        BadRequest: It is not an object.
        Malformed: It is not valid JSON, also by the rules of the replica.
        UnsoundRequest: It nests too deeply, or has too many arrays and objects.
    """
    affordable = complete and (len(body) <= FREE_BYTES or _is_affordable(body))
    if affordable:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            _check_depth(error, place)
            text = bytes(body)
            if fits(text):
                return Document(_by(rules, text, place), whole=True)
        else:
            if rules is not _TRITON or _repeats_no_key(value, body):
                if isinstance(value, dict):
                    return _new(Document, (value, True))
                raise BadRequest(f"{place} must be a JSON object")
            text = bytes(body)
            if fits(text):
                return Document(_by(rules, text, place), whole=True)
            if len(text) <= MAX_CUT_BYTES:  # all of it repeats keys, as a first part would
                return _read_shorter(text, place, rules)
    counted = complete and not affordable and len(body) <= MAX_CUT_BYTES  # and found to be too much
    return _read_head(bytes(body[:MAX_CUT_BYTES]), place, rules, guess=not counted)


def _read_head(head: bytes, place: str, rules: Rules, *, guess: bool) -> Document:
    """Read the first part of a document that is cut off, or is beyond the bounds of a reader."""
    if rules is _TRITON:
        head, ended = as_triton_sees(head)
        if ended and fits(head):
            return Document(_by(rules, head, place), whole=True)
    if not _begins(head, place, rules):
        return Document({}, whole=False)
    members = _guess(head) if guess and _is_affordable(head) else None
    if members is not None and (rules is not _TRITON or _repeats_no_key(members, head)):
        _mark_last_text(members)
        return Document(members, whole=False)
    document = _read_closed(head, place, rules)
    return _read_shorter(head, place, rules) if document is None else document


def _read_shorter(head: bytes, place: str, rules: Rules) -> Document:
    """Read a quarter of what is beyond the bounds of the second parser."""
    shorter = len(head) // 4
    if shorter < _LEAST_HEAD_BYTES:
        return Document({}, whole=False)
    members = _read_head(head[:shorter], place, rules, guess=False).members
    return Document(members, whole=False)


def _begins(head: bytes, place: str, rules: Rules) -> bool:
    """Return whether an object begins in the first part of a document.

    Raises:
        BadRequest: It is something else.
        Malformed: It has too much white space.
        UnsoundRequest: It nests too deeply.
    """
    start = head.lstrip()[:1]
    if start == b"{":
        return True
    if start == b"[":
        _open_brackets(_outside_texts(head), place)
    if start and (start != _BOM_START or rules is _TRITON):
        raise BadRequest(f"{place} must be a JSON object")
    if not start and len(head) > MAX_BLANK_BYTES:
        raise Malformed(f"{place} begins with more than {MAX_BLANK_BYTES} bytes of white space")
    return False


def _read_closed(head: bytes, place: str, rules: Rules) -> Document | None:
    """Close a first part and parse it; return ``None`` if it is beyond the second parser's bounds.

    Where it is closed nothing is left of what the cut made incomplete, so an error is the client's.

    Raises:
        Malformed: It is not valid JSON.
        UnsoundRequest: It nests too deeply, or has too many arrays and objects.
    """
    closed, whole, in_text = _close(head, place)
    try:
        value = orjson.loads(closed)
    except orjson.JSONDecodeError as error:
        _check_depth(error, place)
        value = None
    if value is not None and (rules is not _TRITON or _repeats_no_key(value, closed)):
        members = _object(value, place)
    elif fits(closed):
        members = _by(rules, closed, place)
    else:
        return None
    if in_text:
        _mark_last_text(members)
    return Document(members, whole)


def _by(rules: Rules, text: bytes, place: str) -> dict[str, Any]:
    """Parse a document that ``fits`` by the rules of the replica."""
    if rules is _TRITON:
        value = parse_as_triton(as_triton_sees(text)[0], place)
    else:
        value = parse_as_python(text, place)
    return _object(value, place)


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{place} must be a JSON object")
    return value


def _check_depth(error: orjson.JSONDecodeError, place: str) -> None:
    if error.msg.startswith(_TOO_DEEP):
        raise too_deep(place, MAX_WHOLE_DEPTH) from None


def _repeats_no_key(value: object, body: bytes | memoryview) -> bool:
    """Return whether it is sure that no object of a document repeats a key.

    There are as many members as colons outside of texts. Objects in objects of objects are not
    counted, nor those in arrays of arrays: a document that has them is not sure.
    """
    if not isinstance(value, dict):
        return True
    data = body if isinstance(body, bytes) else bytes(body)
    members = len(value)
    if _has_exactly(data, b":", members):
        return True
    if data.find(b"{", data.find(b"{") + 1) < 0:
        return members == _outside_texts(data).count(b":")
    for each in value.values():
        if type(each) is dict:
            members += len(each)
        elif type(each) is list and each and set(map(type, each)) == _ONLY_OBJECTS:
            members += sum(map(len, each))
            inner = [item["parameters"] for item in each if "parameters" in item]
            members += sum([len(item) for item in inner if type(item) is dict])
    return _has_exactly(data, b":", members) or members == _outside_texts(data).count(b":")


def _outside_texts(data: bytes) -> bytes:
    """Return what is outside of the texts of a document."""
    if b"\\" not in data:
        return b"".join(data.split(b'"')[::2])
    pieces = data.split(b'"', _FEW_QUOTES)
    if len(pieces) > _FEW_QUOTES:
        data = data.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
        return b"".join(data.split(b'"')[::2])
    found, outside = [], True
    for piece in pieces:
        if outside:
            found.append(piece)
        escaped = piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2
        if not escaped:
            outside = not outside
    return b"".join(found)


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
            raise too_deep(place, MAX_DEPTH)
        raise too_complex(
            f"{place} has more than {MAX_CONTAINERS} arrays and objects; send it flatter"
        )
    for _ in range(_ROUNDS):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    left = bytearray()
    for bracket in brackets:
        if bracket in b"{[":
            if len(left) >= MAX_DEPTH:
                raise too_deep(place, MAX_DEPTH)
            left.append(bracket)
        elif not left or _PAIR[left.pop()] != bracket:
            raise Malformed(f"{place} is not valid JSON: unexpected {chr(bracket)}")
    return bytes(left)


def _nests_deeper(brackets: bytes, most: int) -> bool:
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket in b"{[" else -1
        if depth > most:
            return True
    return False


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


def _is_affordable(body: bytes | memoryview) -> bool:
    """Return whether a whole JSON document may be parsed as one."""
    size = len(body)
    if size <= FREE_BYTES:
        return True
    if size > MAX_JSON_BYTES:
        return False
    data = bytes(body)
    return not (
        _has_more(data, b"[", MAX_CONTAINERS, _LEAST_ARRAY)
        or _has_more(data, b"{", MAX_CONTAINERS, _LEAST_OBJECT)
        or (size > MAX_COMMAS and _has_more(data, b",", MAX_COMMAS, 1))
    )


def _has_more(data: bytes, byte: bytes, most: int, least: int) -> bool:
    """Return whether ``byte`` occurs more than ``most`` times, if each takes ``least`` bytes.

    It is fastest where the byte is rare.
    """
    find, position = data.find, -1
    enough = len(data) - most * least
    for _ in range(_RARE):
        if position >= enough:
            return False
        position = find(byte, position + 1)
        if position < 0:
            return False
        enough += least
    return _RARE + data.count(byte, position + 1) > most


def _has_exactly(data: bytes, byte: bytes, number: int) -> bool:
    """Return whether ``byte`` occurs ``number`` times; fastest if that is few."""
    if len(data) < _SHORT_BYTES or number > _RARE:
        return data.count(byte) == number
    find, position = data.find, -1
    for _ in range(number):
        position = find(byte, position + 1)
        if position < 0:
            return False
    return find(byte, position + 1) < 0
