"""The stored form of members: one JSON text, bounded by ``MAX_MEMBERS`` per pool. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from tidegate_api.pools import MAX_LOW_OBJECTIVES
from xds_server.fleet.members.members import MAX_MEMBERS, Member, Members
from xds_server.fleet.model.fields import Strict
from xds_server.fleet.model.fleet import EndpointSpec  # noqa: TC001 - pydantic reads it


class _Stored(Strict):
    spec: EndpointSpec
    origin: str
    identity: str
    incarnation: int
    joined: int


_LOW = "/low_objectives"
"""Key of what is no pool, whose names have no slash; only written where there are some."""
_NAMES: TypeAdapter[dict[str, tuple[str, ...]]] = TypeAdapter(dict[str, tuple[str, ...]])
_POOLS: TypeAdapter[dict[str, tuple[_Stored, ...]]] = TypeAdapter(dict[str, tuple[_Stored, ...]])


def dump(members: Members) -> str:
    """Return the members as text."""
    pools: dict[str, Any] = {
        name: tuple(
            _Stored.model_construct(
                spec=each.spec,
                origin=each.origin,
                identity=each.identity,
                incarnation=each.incarnation,
                joined=each.joined_unix_ms,
            )
            for each in group[:MAX_MEMBERS]
        )
        for name, group in members.pools.items()
    }
    if not members.low_objectives:
        return _POOLS.dump_json(pools).decode()
    low = {name: names[:MAX_LOW_OBJECTIVES] for name, names in members.low_objectives.items()}
    return to_json(_POOLS.dump_python(pools, mode="json") | {_LOW: low}).decode()


def load(text: str) -> Members:
    """Return the members of a text.

    Raises:
        ValueError: The text is not one of ``dump``.
    """
    try:
        low: dict[str, tuple[str, ...]] = {}
        if f'"{_LOW}"' in text and isinstance(found := from_json(text), dict):
            low = _NAMES.validate_python(found.pop(_LOW, {}))
            text = to_json(found).decode()
        pools = _POOLS.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"stored members cannot be read ({error.error_count()} errors)") from None
    return Members(
        {
            name: tuple(
                Member(each.spec, each.origin, each.identity, each.incarnation, each.joined)
                for each in group[:MAX_MEMBERS]
            )
            for name, group in pools.items()
        },
        {name: names[:MAX_LOW_OBJECTIVES] for name, names in low.items()},
    )
