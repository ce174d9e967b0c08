"""Random messages of any protobuf type, for fuzzing what a server reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor as Field

if TYPE_CHECKING:
    import random

MAX_DEPTH: Final = 5
TEXTS: Final = (
    "",
    "llm",
    "u0",
    "p1",
    "e1",
    "default",
    "../../etc/passwd",
    "\0\r\n",
    "%s%n{}",
    "x" * 5000,
    "\u202e\U0001f4a3",
    "-1",
    "spiffe://tidegate/admin",
)
WHOLE: Final = (0, 1, 2, 255, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, -1, -(2**31), -(2**63))
REAL: Final = (0.0, 1.0, -1.0, 0.5, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))
_REAL_TYPES: Final = (Field.CPPTYPE_DOUBLE, Field.CPPTYPE_FLOAT)


def filled(kind: type[Any], rng: random.Random, depth: int = 0) -> Any:
    """Return a message of a type, with random fields set to extreme values."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if depth >= MAX_DEPTH or rng.random() < 0.4 + 0.1 * depth:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), field, rng)
        elif field.is_repeated:
            _fill_list(getattr(message, field.name), field, rng, depth)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(
                filled(type(getattr(message, field.name)), rng, depth + 1)
            )
        else:
            setattr(message, field.name, _scalar(field, rng))
    return message


def garbled(data: bytes, rng: random.Random) -> bytes:
    """Return bytes like these with some changed, cut or added."""
    bent = bytearray(data or b"\x0a\x03abc")
    for _ in range(rng.randrange(1, 8)):
        bent[rng.randrange(len(bent))] = rng.randrange(256)
    return bytes(bent[: rng.randrange(1, len(bent) + 1)]) + rng.randbytes(rng.randrange(4))


def _fill_list(found: Any, field: Any, rng: random.Random, depth: int) -> None:
    for _ in range(rng.randrange(4)):
        if field.message_type is not None:
            made = found.add()
            made.CopyFrom(filled(type(made), rng, depth + 1))
        else:
            found.append(_scalar(field, rng))


def _fill_map(found: Any, field: Any, rng: random.Random) -> None:
    key = field.message_type.fields_by_name["key"]
    value = field.message_type.fields_by_name["value"]
    if value.message_type is None:
        for _ in range(rng.randrange(4)):
            found[_scalar(key, rng)] = _scalar(value, rng)


def _scalar(field: Any, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind == Field.CPPTYPE_STRING:
        return rng.randbytes(20) if field.type == Field.TYPE_BYTES else rng.choice(TEXTS)
    if kind in _REAL_TYPES:
        return rng.choice(REAL)
    if kind == Field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == Field.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    bits = 32 if kind in (Field.CPPTYPE_INT32, Field.CPPTYPE_UINT32) else 64
    signed = kind in (Field.CPPTYPE_INT32, Field.CPPTYPE_INT64)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    return rng.choice([each for each in WHOLE if low <= each < high])
