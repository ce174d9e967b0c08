"""The stored form of members: one JSON text, bounded by ``MAX_MEMBERS`` per pool. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from xds_server.fleet.members.members import MAX_MEMBERS, Member, Members
from xds_server.fleet.model.fields import Strict
from xds_server.fleet.model.fleet import EndpointSpec  # noqa: TC001 - pydantic reads it


class _Stored(Strict):
    spec: EndpointSpec
    origin: str
    identity: str
    incarnation: int
    joined: int


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
    return _POOLS.dump_json(pools).decode()


def load(text: str) -> Members:
    """Return the members of a text.

    Raises:
        ValueError: The text is not one of ``dump``.
    """
    try:
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
        }
    )
