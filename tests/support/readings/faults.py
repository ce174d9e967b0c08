"""Mistakes that a picker's parsers could make, as changes of what they are given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

from support.readings.cases import Case
from support.readings.json_bodies import LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable

_FRAME: Final = 5
_NO_NUMBER: Final = re.compile(rb"\bNaN\b|\bInf")
_BYTES: Final = 2
_LAST_TEXT: Final = 3
"""Fields up to this one are the request's texts."""


def last_of_duplicates(case: Case) -> Case:
    """Read the last of members with one name, as most parsers of JSON do."""
    if case.is_grpc:
        return case
    document, rebuilt = _document(case)
    try:
        return rebuilt(orjson.dumps(orjson.loads(document)))
    except (orjson.JSONDecodeError, TypeError):
        return case


def no_nan(case: Case) -> Case:
    """Reject JSON that has no number where one should be."""
    if case.is_grpc:
        return case
    document, rebuilt = _document(case)
    return rebuilt(_NO_NUMBER.sub(b"?", document))


def strict_length(case: Case) -> Case:
    """Read the length of the JSON by `int`, which raises where `atoi` stops reading."""
    told = [value for name, value in case.headers if name == LENGTH]
    if not told:
        return case
    try:
        read = str(int(told[0]))
    except ValueError:
        read = str(len(case.body) + 1)
    others = tuple(each for each in case.headers if each[0] != LENGTH)
    return Case(case.path, (*others, (LENGTH, read)), case.body, case.chunked)


def first_of_fields(case: Case) -> Case:
    """Read the first of a message's texts with one number, where protobuf takes the last."""
    if not case.is_grpc or case.body[:1] != b"\0":
        return case
    message, kept, seen, position = case.body[_FRAME:], b"", set(), 0
    while position + 1 < len(message):
        tag, size = message[position], message[position + 1]
        end = position + 2 + size
        if tag & 7 != _BYTES or tag > 0x7F or size > 0x7F:
            kept += message[position:]
            break
        number = tag >> 3
        if number > _LAST_TEXT or number not in seen:
            kept += message[position:end]
        seen.add(number)
        position = end
    return case.changed(b"\0" + len(kept).to_bytes(4, "big") + kept)


FAULTS: Final[tuple[Callable[[Case], Case], ...]] = (
    last_of_duplicates,
    no_nan,
    strict_length,
    first_of_fields,
)


def _document(case: Case) -> tuple[bytes, Callable[[bytes], Case]]:
    """Return the JSON of a request that is not compressed, and how to replace it."""
    told = [value for name, value in case.headers if name == LENGTH]
    if not told:
        return case.body, case.changed
    size = int(told[0]) if told[0].isdecimal() else len(case.body)
    others = tuple(each for each in case.headers if each[0] != LENGTH)

    def rebuilt(document: bytes) -> Case:
        headers = (*others, (LENGTH, str(len(document))))
        return Case(case.path, headers, document + case.body[size:], case.chunked)

    return case.body[:size], rebuilt
