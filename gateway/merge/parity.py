"""Descriptions of a model or a server: which one counts, and which replicas differ. Pure.

Rules:

1. Descriptions are compared in a canonical form, and the one that most replicas give counts: by the
   rules of ``tidegate_common.parity``, over HTTP and gRPC.
2. The versions of a model are those of all replicas; they make no difference. Of a server's
   extensions those count that all replicas have.

Source: Triton's model configuration extension, and KServe's metadata.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import orjson
from google.protobuf.message import DecodeError

from tidegate_api.kserve.v1 import kserve_pb2
from tidegate_common.parity import (
    INSTANCES,
    OF_THE_MACHINE,
    TENSORS,
    ParityError,
    canonical,
    digest,
    unordered,
    usual,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "DescriptionError",
    "common",
    "form_of_config",
    "form_of_json",
    "form_of_json_config",
    "form_without",
    "parsed",
    "read_all",
    "texts",
    "usual",
    "versions_of",
]

MAX_VERSIONS: Final = 1000
"""Most versions of a model that are listed."""


class DescriptionError(ValueError):
    """The answer is no description."""


def parsed(data: bytes) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        DescriptionError: It is none.
    """
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise DescriptionError from error
    if not isinstance(found, dict):
        raise DescriptionError
    return found


def form_of_json(data: bytes) -> str:
    """Return the canonical form of a JSON object, a digest.

    Raises:
        DescriptionError: It is none.
    """
    return _digest(orjson.dumps(unordered(parsed(data)), option=orjson.OPT_SORT_KEYS))


def form_of_json_config(data: bytes) -> str:
    """Return the canonical form of a configuration as JSON, a digest.

    Raises:
        DescriptionError: It is none.
    """
    try:
        return digest(canonical(parsed(data)))
    except ParityError as error:
        raise DescriptionError from error


def form_of_config(data: bytes) -> str:
    """Return the canonical form of a ``ModelConfigResponse``, a digest.

    Raises:
        DescriptionError: It is none.
    """
    try:
        answer = kserve_pb2.ModelConfigResponse.FromString(data)
        maps = kserve_pb2.ConfigMaps.FromString(answer.config)
    except DecodeError as error:
        raise DescriptionError from error
    _order(maps)
    for instances in getattr(maps, INSTANCES):
        for field in OF_THE_MACHINE:
            instances.ClearField(field)
    _prune(maps)
    return _digest(maps.SerializeToString(deterministic=True))


def form_without(message: Any, field: str) -> str:
    """Return the canonical form of a message without one of its fields, a digest."""
    bare = type(message)()
    bare.CopyFrom(message)
    bare.ClearField(field)
    _order(bare)
    return _digest(bare.SerializeToString(deterministic=True))


def versions_of(every: Mapping[str, list[str]]) -> list[str]:
    """Return the versions of a model on all replicas, in the order of their numbers."""
    found = dict.fromkeys(each for versions in every.values() for each in versions)
    return sorted(found, key=lambda each: (not each.isdecimal(), each.rjust(20, "0")))[
        :MAX_VERSIONS
    ]


def common(every: Mapping[str, list[str]]) -> list[str]:
    """Return what all replicas have, in the order of the first."""
    several = list(every.values())
    return [each for each in several[0] if all(each in other for other in several[1:])]


def texts(value: Any) -> list[str]:
    """Return a list of texts as it is.

    Raises:
        DescriptionError: It is none.
    """
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise DescriptionError
    return value


def read_all(
    bodies: Mapping[str, bytes], read: Callable[[bytes], Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return what was read by replica, and the replicas whose answer is none."""
    found: dict[str, Any] = {}
    for replica, body in bodies.items():
        try:
            found[replica] = read(body)
        except (DescriptionError, DecodeError):
            continue
    return found, frozenset(bodies.keys() - found.keys())


def _order(message: Any) -> None:
    """Order the inputs and outputs of a configuration or of metadata by their names."""
    for field in TENSORS:
        if field in message.DESCRIPTOR.fields_by_name:
            getattr(message, field).sort(key=lambda tensor: tensor.name)


def _prune(message: Any) -> None:
    """Remove messages in which nothing is set; defaults of other types are not sent."""
    for field, value in message.ListFields():
        if field.message_type is not None and not field.is_repeated:
            _prune(value)
            if not value.ByteSize():
                message.ClearField(field.name)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
