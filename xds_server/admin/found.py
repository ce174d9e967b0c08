"""Conversion of found replicas and their sources to the admin API's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_api.admin.v1 import admin_pb2
from xds_server.admin.answers.copied import copied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.applications.discovery.membership import Membership
    from xds_server.fleet.members.members import Members
    from xds_server.fleet.model.fleet import Fleet

MAX_SHOWN: Final = 100
"""Most ids of one pool's held replicas in an answer."""


def replicas(fleet: Fleet, members: Members) -> Iterator[admin_pb2.FoundReplica]:
    """Yield the members, as they are published in ``fleet``."""
    for pool in fleet.pools:
        published = {each.id: each for each in pool.endpoints}
        shown: set[str] = set()
        for member in members.pools.get(pool.name, ()):
            spec = published.get(member.spec.id)
            if spec is None or spec.id in shown:
                continue
            shown.add(spec.id)
            yield copied(
                admin_pb2.FoundReplica,
                spec,
                pool=pool.name,
                variant=pool.variant_of(spec),
                held=member.held,
                source=member.origin,
            )


def sources(found: Membership) -> Iterator[admin_pb2.SourceStatus]:
    """Yield the state of each source."""
    yield from (copied(admin_pb2.SourceStatus, each) for each in found.sources())


def held(found: Membership) -> Iterator[admin_pb2.HeldReplicas]:
    """Yield what each pool holds."""
    now = found.now()
    for each in found.pools():
        hold = each.hold
        if hold is not None:
            yield admin_pb2.HeldReplicas(
                pool=each.pool,
                endpoints=hold.ids[:MAX_SHOWN],
                of=hold.of,
                left_seconds=None if hold.until is None else max(0.0, hold.until - now),
            )


def left_out(fleet: Fleet, members: Members, found: Membership) -> Iterator[str]:
    """Yield which pools have no replicas, and why found ones are no members or not in the fleet."""
    for each in found.pools():
        if each.nothing:
            yield f"pool {each.pool}: no replica takes requests: {each.nothing}"
        for reason in each.unfit:
            yield f"pool {each.pool}: {reason}"
    yield from members.published(fleet).left_out
