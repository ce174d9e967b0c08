"""What a change would send and do to connections, from its stages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_api.names import CLUSTER_TYPE, SHORT_TYPE
from xds_server.fleet.channels import drains
from xds_server.protocol.snapshot import changed_names
from xds_server.snapshots.stages import newly_draining

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xds_server.fleet.model.fleet import Fleet
    from xds_server.protocol.publication import Audience, Stage
    from xds_server.protocol.snapshot import Snapshot

MAX_NAMES: Final = 50
"""Most names of clusters and of replicas; the last then counts the omitted ones."""


class Preview(NamedTuple):
    """What a change would do."""

    before: Fleet | None
    """The fleet in force as clients have it; ``None`` = there is none."""
    after: Fleet
    """The fleet that would be in force."""
    channels: tuple[str, ...]
    """Short names of the types that would be sent."""
    drains: tuple[str, ...]
    """Changed fields for which Envoy closes the listener's connections."""
    warms: tuple[str, ...]
    """Clusters whose settings change: Envoy opens new connections to their replicas."""
    draining: tuple[str, ...]
    """Ids of the replicas that would begin to drain."""


def preview(
    stages: Sequence[Stage],
    envoy: Snapshot | None,
    picker: Snapshot | None,
    before: Fleet | None,
    after: Fleet,
) -> Preview:
    """Return what the stages would do.

    Args:
        stages: The stages of the change.
        envoy: The snapshot in force for Envoys; ``None`` = nothing was published.
        picker: The one for pickers.
        before: The fleet in force.
        after: The new one.
    """
    held: dict[Audience, Snapshot | None] = {"envoy": envoy, "picker": picker}
    served = {url for each in (envoy, picker) if each is not None for url in each.type_urls}
    urls: set[str] = set()
    warms: set[str] = set()
    for stage in stages:
        was, now = held[stage.audience], stage.snapshot
        held[stage.audience] = now
        for url in now.type_urls:
            if served and url not in served:
                continue
            if was is None or was.differs(now, url):
                urls.add(url)
            if url == CLUSTER_TYPE and was is not None:
                warms |= _edited(was, now)
    return Preview(
        before,
        after,
        tuple(short for url, short in SHORT_TYPE.items() if url in urls),
        () if before is None else drains(before, after),
        shortened(sorted(warms)),
        () if before is None else shortened(sorted(newly_draining(before, after))),
    )


def shortened(names: Sequence[str]) -> tuple[str, ...]:
    """Return at most ``MAX_NAMES`` names; the last then counts the omitted ones."""
    if len(names) <= MAX_NAMES:
        return tuple(names)
    return (*names[: MAX_NAMES - 1], f"and {len(names) - MAX_NAMES + 1} more")


def _edited(was: Snapshot, now: Snapshot) -> set[str]:
    old, new = was.type_set(CLUSTER_TYPE), now.type_set(CLUSTER_TYPE)
    if old is None or new is None or old is new:
        return set()
    return {
        name for name in changed_names(old, new) if name in old.resources and name in new.resources
    }
