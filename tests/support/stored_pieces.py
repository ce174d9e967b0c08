"""Small fleets for tests of the control server's store, and the pieces that it wrote of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.fleets import endpoint, fleet, pool
from xds_server.fleet.revision import FileState, FleetState, Revision
from xds_server.fleet.stored.written import digests_in

if TYPE_CHECKING:
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.store import RevisionStore

POOLS = "abcd"


def wanted(content: dict[str, int]) -> Fleet:
    """Return a fleet with these pools, each of which differs by a number."""
    return fleet(
        *(
            pool(name, endpoints=[endpoint(10 * POOLS.index(name) + 1, capacity=1.0 + number)])
            for name, number in content.items()
        )
    )


def state(number: int, content: Fleet, *, file: FileState | None = None) -> FleetState:
    """Return a state whose incarnations follow the revision."""
    found = {each.id: (number // 2, 5) for one in content.pools for each in one.endpoints}
    return FleetState(Revision(number, 1, "ann", "", ()), content, found, file)


def pieces_of(store: RevisionStore) -> tuple[set[str], set[str]]:
    """Return the digests of the stored pieces, and those that are named."""
    texts = [row[0] for row in store._rows("SELECT fleet FROM revisions")]
    texts += [
        json.loads(row[0])["fleet"]
        for row in store._rows("SELECT value FROM latest WHERE key = 'file'")
    ]
    named = {digest for text in texts for digest in digests_in(text)}
    return {row[0] for row in store._rows("SELECT digest FROM pieces")}, named
