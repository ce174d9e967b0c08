"""Engines' reports of their caches (KV events): what a reporting endpoint holds.

Endpoints with and without KV events are kept in the same index.

Rules:

1. A *reporting* endpoint holds the blocks that its engines stored and have not removed. They do not
   expire; only a removal event, a purge or the endpoint's removal ends them. An engine may hold
   several copies of a block, and several engines may hold it: it is held until the last copy is
   removed. A report that begins at the root adds no copies of known blocks, unless it is of a
   prompt that the endpoint was sent and computes from its root (``Features.recomputed``): clients
   can make vLLM report the blocks that a prompt *reuses* (``kv_cache_report_mode: full``), always
   from the root and in the same words. So the index may hold less than an engine (whose other
   clients let it compute copies from the root), but never more for what a client sends.
2. Reports are believed by prompt. Of a prompt that its endpoint reports in part, the rest counts
   as held for ``SPECULATIVE_S``; what was reported and removed does not, even if the request ends
   later. A prompt of which nothing is reported counts for the usual time, as without KV events:
   its tokens are not known here (chats, another block size or tokenizer). The usual time applies
   to all while the reports have gaps (``complete`` is false). An endpoint that reports nothing of
   ``DOUBTS`` prompts in a row is shown as one whose reports do not fit.
3. Removals come in any order, so a block may be held without those before it. Matches stay
   contiguous from the root: prompts held by reporting endpoints are matched by a linear walk.
4. An endpoint holds at most its ``max_blocks``; reported blocks beyond that are ignored.
5. A purge drops the reported blocks; the endpoint stays a reporting one.

Memory: 130 to 190 bytes per block that one endpoint reports (two dictionary slots, name and block),
below 200 by test except for dictionaries that have just grown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ext_proc.routing.cache.prefix_uses import Trial, Use

if TYPE_CHECKING:
    from ext_proc.routing.cache.inserts import Retention
    from ext_proc.routing.cache.prefix_table import PrefixTable
    from ext_proc.routing.cache.prefix_uses import Holder, ReportedUse
    from ext_proc.routing.values.pool import EndpointKey


class EngineReports:
    """What engines report of their caches.

    Args:
        table: The blocks and their owners.
        retention: The confirmed inserts, from which reported blocks are taken.
    """

    def __init__(self, table: PrefixTable, retention: Retention) -> None:
        self._table = table
        self._entries = table.entries
        self._holders = table.holders
        self._retention = retention
        self.overflowed = 0
        """Number of reported blocks ignored at an endpoint's bound (rule 4)."""

    def is_exact(self, endpoint: EndpointKey) -> bool | None:
        """Whether an endpoint's reports are complete and match; ``None`` if it does not report."""
        complete = self._table.reporting.get(endpoint)
        holder = self._holders.get(endpoint)
        if not complete or holder is None or holder.reported is None:
            return complete
        return holder.reported.believed

    def block(self, endpoint: EndpointKey, engine: int, name: int) -> int | None:
        """Return our hash of a block by its engine's name, ``None`` if unknown."""
        holder = self._holders.get(endpoint)
        if holder is None or holder.reported is None:
            return None
        return holder.reported.names.get(engine, {}).get(name)

    def set_reporting(self, endpoint: EndpointKey, complete: bool | None) -> None:
        """Start or stop taking an endpoint's reports, or set whether they have gaps.

        Args:
            endpoint: The endpoint.
            complete: Whether its reports cover all that it holds; ``None`` = it stops reporting.
        """
        if complete is None:
            if self._table.reporting.pop(endpoint, None) is not None:
                self._table.purge(endpoint)
            return
        if endpoint not in self._table.reporting:
            self._table.purge(endpoint)  # blocks sent before would never be confirmed
        self._table.reporting[endpoint] = complete
        holder = self._holders.get(endpoint)
        if holder is not None and holder.reported is not None:
            holder.reported.complete = complete

    def store(
        self,
        endpoint: EndpointKey,
        engine: int,
        names: tuple[int, ...],
        blocks: tuple[int, ...],
        parent: int | None = None,
    ) -> None:
        """Record that an engine stored blocks, or reused them from the root (rule 1).

        Ignored for an endpoint that does not report.
        """
        if endpoint not in self._table.reporting:
            return
        holder = self._holders.get(endpoint) or self._table.enrol(endpoint)
        reported = holder.reported
        if reported is None:
            return
        if self._table.dead:
            self._table.reclaim(2 * len(blocks))
        named = reported.names.setdefault(engine, {})
        computed = parent is not None or (bool(reported.expected) and reported.computed(blocks))
        known = True
        for name, block in zip(names, blocks, strict=True):
            if name in named:
                if computed:
                    reported.copies[engine, name] = reported.copies.get((engine, name), 0) + 1
                continue
            entry = self._entries.get(block)
            if self._table.owner(block, holder.bit) is reported:
                reported.others[block] = reported.others.get(block, 0) + 1
            elif reported.live >= holder.kept.max_blocks:
                self.overflowed += 1
                continue
            else:
                if entry is None and known:
                    known = False
                    self._table.note_fork(blocks if parent is None else (parent, *blocks), block)
                self._take(block, holder, reported)
            named[name] = block
        self._retention.fit(holder, reported.tenant)

    def remove(self, endpoint: EndpointKey, engine: int, names: tuple[int, ...]) -> None:
        """Record that an engine removed blocks; unknown names are ignored."""
        holder = self._holders.get(endpoint)
        if holder is None or holder.reported is None:
            return
        reported = holder.reported
        named = reported.names.get(engine, {})
        for name in names:
            if not _less(reported.copies, (engine, name)):
                block = named.pop(name, None)
                if block is not None:
                    self._release(block, holder, reported)

    def clear(self, endpoint: EndpointKey, engine: int) -> None:
        """Record that an engine's cache is empty.

        If no other engine of the endpoint holds blocks, this is a purge: it takes constant time and
        also drops the blocks that the endpoint was sent.
        """
        holder = self._holders.get(endpoint)
        if holder is None or holder.reported is None:
            return
        reported = holder.reported
        if not any(names for other, names in reported.names.items() if other != engine):
            self._table.purge(endpoint)
            return
        for copy in [each for each in reported.copies if each[0] == engine]:
            del reported.copies[copy]
        for block in reported.names.pop(engine, {}).values():
            self._release(block, holder, reported)

    # --- Inside ---------------------------------------------------------------------------------

    def _take(self, block: int, holder: Holder, reported: ReportedUse) -> None:
        """Mark a block as reported, whether the endpoint was sent it or not."""
        entry = self._entries.get(block)
        earlier: Use | None = None
        if entry is None:
            self._entries[block] = reported
        elif isinstance(entry, Use) and entry.mask == holder.bit:
            earlier = entry
            self._entries[block] = reported
        else:
            earlier = self._table.share(block, entry, reported)
        reported.live += 1
        if earlier is None:
            holder.kept.count += 1
        else:
            if isinstance(earlier, Trial):
                earlier.told = True
            else:
                reported.waiting[earlier] = None
            self._retention.lost(holder, earlier, 1)
            reported.confirmed()

    def _release(self, block: int, holder: Holder, reported: ReportedUse) -> None:
        """Remove one name of a block, and the block with its last name."""
        if not _less(reported.others, block):
            self._table.drop(block, holder, reported)


def _less(counts: dict[Any, int], key: object) -> bool:
    """Decrement a count and drop it at 0; return whether it was above 0."""
    count = counts.get(key, 0)
    if count > 1:
        counts[key] = count - 1
    elif count:
        del counts[key]
    return count > 0
