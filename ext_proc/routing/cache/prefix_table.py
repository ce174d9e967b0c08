"""The table of the prefix index: maps prompt blocks to their holders and matches prompts.

A block's hash covers all blocks before it, so one flat table of hashes represents a radix tree.
It maps a block to the *use* (one insert on one endpoint) that touched it last, or to several uses
if several endpoints hold it.

Rules:

1. Matching is contiguous from the root: depth ``d`` means that the first ``d`` blocks are held.
2. An endpoint that holds a block holds all blocks before it, so long prompts are matched by binary
   search. ``exact_index`` overrides this for endpoints where it does not hold.
3. Each endpoint has a bit of its own. The bit of a purged endpoint is not live and matches nothing.
4. This module does not change the table; ``prefix_index`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.cache.forks import Forks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.cache.prefix_uses import Holder, SharedUse, Use
    from ext_proc.routing.state.candidate import Candidate
    from ext_proc.routing.values.pool import EndpointKey

LONG: Final = 32
"""Number of blocks above which binary search is faster than a linear walk."""

Steps = list[tuple[int, int]]
"""Result of a walk from the root, by rising depth: the bits of the endpoints that hold at least
that many blocks, and the depth."""


class PrefixTable:
    """Queries on prompt blocks and their holders."""

    def __init__(self) -> None:
        self._table: dict[int, Use | SharedUse] = {}
        self._forks = Forks()
        self._holders: dict[EndpointKey, Holder] = {}
        self._bits: dict[EndpointKey, int] = {}
        """The bit of each endpoint that is not purged."""
        self._by_bit: dict[int, Holder] = {}
        self._live = 0
        """The bits of all endpoints that are not purged."""

    @property
    def blocks(self) -> int:
        """Number of distinct blocks in memory."""
        return len(self._table)

    def held(self, endpoint: EndpointKey) -> int:
        """Return the number of blocks that an endpoint holds, confirmed and provisional."""
        holder = self._holders.get(endpoint)
        return 0 if holder is None else holder.kept.count + holder.trials.count

    def matched(self, blocks: tuple[int, ...], endpoint: EndpointKey) -> int:
        """Return the number of leading blocks that an endpoint holds without a gap."""
        return self.match_all(blocks).get(endpoint, 0)

    def match_all(self, blocks: tuple[int, ...]) -> dict[EndpointKey, int]:
        """Return the match depth of each endpoint that holds at least the first block."""
        return self.deepest(self.match(blocks), len(self._holders))

    def match(self, blocks: tuple[int, ...]) -> Steps:
        """Match a prompt from its root; ``deepest``, ``depths`` and ``depth`` read the result.

        The cost does not depend on the number of endpoints that hold the prompt.
        """
        if len(blocks) > LONG:
            return self._match_long(blocks)
        steps: Steps = []
        alive = self._live
        depth = 0
        before: Use | SharedUse | None = None
        for depth, entry in enumerate(map(self._table.get, blocks)):
            if entry is None:
                break
            if entry is before:  # of the same insert, so of the same endpoint
                continue
            before = entry
            mask = alive & entry.mask
            if mask != alive:
                if depth:
                    steps.append((alive, depth))
                if not mask:
                    return steps
                alive = mask
        else:
            depth = len(blocks)
        if depth and alive:
            steps.append((alive, depth))
        return steps

    def _match_long(self, blocks: tuple[int, ...]) -> Steps:
        """Match a long prompt by binary search (rule 2)."""
        steps: Steps = []
        find = self._table.get
        depth, last = 0, len(blocks) - 1
        entry = find(blocks[0])
        alive = 0 if entry is None else self._live & entry.mask
        while alive:
            low, high = depth, last + 1  # `low` has the same holders, `high` has not
            probe = last  # the next turn of a conversation is held nearly to its end
            while low < probe:
                entry = find(blocks[probe])
                if entry is not None and alive & entry.mask == alive:
                    low = probe
                else:
                    high = probe
                probe = (low + high) // 2
            steps.append((alive, low + 1))
            depth = low + 1
            entry = find(blocks[depth]) if depth <= last else None
            alive = 0 if entry is None else alive & entry.mask
        return steps

    def deepest(self, steps: Steps, most: int, start: float = 0.0) -> dict[EndpointKey, int]:
        """Return the match depth of the endpoints with the deepest matches.

        Args:
            steps: Result of ``match``, with no change of the index since.
            most: Maximum number of endpoints; those with the shallowest matches are left out.
            start: Random number in [0, 1): where to begin among equal depths, so that not always
                the same endpoints are left out.
        """
        found: dict[EndpointKey, int] = {}
        by_bit = self._by_bit
        deeper = 0
        for alive, depth in reversed(steps):
            bits = alive & ~deeper
            first = int(start * bits.bit_length())
            later = bits >> first << first
            for some in (later, bits ^ later):
                left = some
                while left:
                    if len(found) >= most:
                        return found
                    lowest = left & -left
                    found[by_bit[lowest].key] = depth
                    left ^= lowest
            deeper = alive
        return found

    def sole_holder(self, steps: Steps) -> EndpointKey | None:
        """Return the endpoint that alone holds any of a prompt, as of most conversations.

        Args:
            steps: Result of ``match``; not empty.

        Returns:
            It, or ``None`` if there are several.
        """
        alive, _ = steps[0]
        return None if alive & (alive - 1) else self._by_bit[alive].key

    def depths(self, steps: Steps, candidates: Sequence[Candidate]) -> list[int]:
        """Return the match depth of each candidate's replica.

        Args:
            steps: Result of ``match``; not empty.
            candidates: The candidates.
        """
        find = self._bits.get
        if len(steps) == 1:
            alive, depth = steps[0]
            return [depth if alive & find(candidate.key, 0) else 0 for candidate in candidates]
        depths: list[int] = []
        rising = steps[::-1]
        for candidate in candidates:
            bit = find(candidate.key, 0)
            for alive, depth in rising:
                if alive & bit:
                    depths.append(depth)
                    break
            else:
                depths.append(0)
        return depths

    def depth(self, steps: Steps, endpoint: EndpointKey) -> int:
        """Return the match depth of an endpoint."""
        holder = self._holders.get(endpoint)
        if holder is not None:
            for alive, depth in reversed(steps):
                if alive & holder.bit:
                    return depth
        return 0

    def shared_depth(self, blocks: tuple[int, ...], matched: int, endpoints: int) -> int:
        """Return the number of leading blocks that are worth a copy on every replica.

        Copying a prefix of ``d`` blocks to ``n`` replicas costs ``n * d`` blocks of prefill. Once
        the prefix has that many continuations (a system prompt, not a conversation), this is at
        most one block per continuation: cheap compared with sending them all to one replica.

        Args:
            blocks: The prompt.
            matched: The deepest match of any endpoint; deeper blocks are not considered.
            endpoints: Number of replicas that could hold a copy.
        """
        return self._forks.shared(blocks, matched, endpoints)

    def branched_depth(self, blocks: tuple[int, ...], matched: int) -> int:
        """Return the number of leading blocks with two or more continuations.

        They belong to several prompts, so a replica that computes them again has a copy that other
        prompts will use. The blocks after them belong to one conversation. The prompt itself counts
        as a continuation where it leaves a known one.

        Args:
            blocks: The prompt.
            matched: The deepest match of any endpoint; deeper blocks are not considered.
        """
        known = matched < len(blocks) and blocks[matched] in self._table
        return self._forks.branched(blocks, matched, leaves=matched > 0 and not known)
