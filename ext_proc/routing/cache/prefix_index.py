"""The prefix index: the prompt blocks that each replica probably holds in its KV cache.

It is approximate where it records what this picker sent, not what an engine evicted, and exact
where engines report their caches. It is composed of

* ``prefix_table``: the blocks, their holders and owners, and all queries;
* ``inserts``: what was sent, confirmed by age and tenant, and provisional until the answer begins;
* ``engine_reports``: what engines report.

Inserts, purges and reports are events; applying the same events gives the same index.

Memory: 100 to 155 bytes per block held by one endpoint (dictionary slot, 64-bit key, eight bytes
in its use), less with longer chains, because a use itself takes about 250; below 200 by test.
A dictionary that has just grown may take 60 more per block. ``bench/cost/decide.py`` measures it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.cache.engine_reports import EngineReports
from ext_proc.routing.cache.index_events import Cleared, Inserted, Removed, Reporting, Stored
from ext_proc.routing.cache.inserts import ProvisionalInserts, Retention
from ext_proc.routing.cache.prefix_table import PrefixTable
from ext_proc.routing.cache.prefix_uses import SHARED_TENANT

if TYPE_CHECKING:
    from ext_proc.routing.cache.index_events import IndexEvent
    from ext_proc.routing.values.pool import EndpointKey

MAX_BLOCKS: Final = 100_000
TTL_S: Final = 600.0


class PrefixIndex:
    """Prompt blocks by endpoint, from our own dispatches and from the endpoints' reports.

    Args:
        max_blocks: Default bound of blocks per endpoint, unless ``limit`` sets another.
        ttl_s: Default age in seconds at which an untouched block is dropped, likewise.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS, ttl_s: float = TTL_S) -> None:
        self.table = table = PrefixTable(max_blocks, ttl_s)
        self.retention = retention = Retention(table)
        self.provisional = provisional = ProvisionalInserts(table, retention)
        self.reports = reports = EngineReports(table, retention)
        # The parts' own methods, so that a call of the index costs no further call.
        self.held, self.match_all = table.held, table.match_all
        self.insert, self.expire = retention.insert, retention.expire
        self.coming = provisional.coming
        self.is_exact = reports.is_exact
        self.purge, self.bound, self.forget = table.purge, table.bound, table.forget

    def __repr__(self) -> str:
        return f"<PrefixIndex blocks={len(self.table)} endpoints={len(self.table.holders)}>"

    @property
    def blocks(self) -> int:
        """Number of distinct blocks in memory."""
        return len(self.table)

    def limit(self, endpoint: EndpointKey, max_blocks: int, ttl_s: float) -> None:
        """Set an endpoint's bounds; blocks above a lowered bound are dropped at once."""
        holder = self.table.limit(endpoint, max_blocks, ttl_s)
        if holder is not None:
            self.retention.fit(holder, holder.kept.tenant(SHARED_TENANT))
            self.provisional.fit(holder.trials)

    def apply(self, event: IndexEvent) -> None:
        """Apply one event."""
        if isinstance(event, Stored):
            self.reports.store(*event)
        elif isinstance(event, Removed):
            self.reports.remove(*event)
        elif isinstance(event, Cleared):
            self.reports.clear(*event)
        elif isinstance(event, Reporting):
            self.reports.set_reporting(*event)
        elif isinstance(event, Inserted):
            self.retention.insert(event.endpoint, event.blocks, event.at, event.tenant)
        else:
            self.table.purge(event.endpoint)
