"""Edits of serialized protobuf messages: fields are dropped, all other bytes stay as they are.

The library that reads messages need not know the fields, which is often so with new ones.
Source: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.protocol.wire import delimited

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_MAX_VARINT_BYTES: Final = 10

_ANY_TYPE: Final = 1
_ANY_VALUE: Final = 2


class Into(NamedTuple):
    """A step into each message of a field or, with ``type``, into an ``Any`` of that type."""

    field: int
    type: str = ""
    """Type URL without its prefix; other types are left alone."""


class Drop(NamedTuple):
    """The end of a path: which fields of the message are dropped."""

    fields: frozenset[int]
    name: str = ""
    """If set, only elements whose own field 1 has this text are dropped."""


class _Field(NamedTuple):
    number: int
    wire: int
    start: int
    body: int
    end: int


def edited(data: bytes, path: tuple[Into, ...], drop: Drop) -> bytes:
    """Return the message without what ``drop`` names at the end of ``path``.

    Args:
        data: A serialized message.
        path: From the message to those that are edited.
        drop: What is dropped there.

    Raises:
        ValueError: The bytes are no message.
    """
    made: list[bytes] = []
    for field in _fields(data):
        whole = data[field.start : field.end]
        if not path:
            if not _dropped(field, data, drop):
                made.append(whole)
            continue
        step, rest = path[0], path[1:]
        if field.number != step.field or field.wire != _BYTES:
            made.append(whole)
            continue
        body = data[field.body : field.end]
        new = _in_any(body, step.type, rest, drop) if step.type else edited(body, rest, drop)
        made.append(whole if new == body else delimited(field.number, new))
    return b"".join(made)


def _in_any(data: bytes, type_url: str, path: tuple[Into, ...], drop: Drop) -> bytes:
    found = [data[f.body : f.end] for f in _fields(data) if f.number == _ANY_TYPE]
    if not found or found[-1].rpartition(b"/")[2] != type_url.encode():
        return data
    return edited(data, (Into(_ANY_VALUE), *path), drop)


def _dropped(field: _Field, data: bytes, drop: Drop) -> bool:
    if field.number not in drop.fields:
        return False
    if not drop.name:
        return True
    body = data[field.body : field.end]
    name = drop.name.encode()
    return any(f.number == 1 and body[f.body : f.end] == name for f in _fields(body))


def _fields(data: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        body = at
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        elif wire == _BYTES:
            length, body = _varint(data, at)
            at = body + length
        else:
            raise ValueError(f"wire type {wire} at byte {start} is not read")
        if at > len(data):
            raise ValueError(f"the field at byte {start} is cut off")
        yield _Field(number, wire, start, body, at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= len(data):
            break
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return value, at + index + 1
    raise ValueError(f"no number at byte {at}")
