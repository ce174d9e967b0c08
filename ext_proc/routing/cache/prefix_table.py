"""The table of the prefix index: who holds which prompt blocks, and how a prompt is matched.

A block's hash covers all blocks before it, so one flat table of hashes stands for a radix tree.
It maps a block to the *use* (one insert on one endpoint) that touched it last, or to several uses
where several endpoints hold it.

Rules:

1. Matching is contiguous from the root: depth ``d`` means that the first ``d`` blocks are held.
2. Who holds a block holds all before it, so long prompts are halved, not walked; ``exact_index``,
   where this is not so, walks them.
3. Each endpoint has a bit of its own. That of a purged one is not live, and matches nothing.
4. Nothing here changes the table; ``prefix_index`` does.
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
"""Blocks from which on halving beats walking."""

Steps = list[tuple[int, int]]
"""Where a walk from the root lost endpoints: the bits of those that hold so many blocks."""


class PrefixTable:
    """Prompt blocks and their holders, to be asked."""

    def __init__(self) -> None:
        self._table: dict[int, Use | SharedUse] = {}
        self._forks = Forks()
        self._holders: dict[EndpointKey, Holder] = {}
        self._bits: dict[EndpointKey, int] = {}
        """Of those who are not purged."""
        self._by_bit: dict[int, Holder] = {}
        self._live = 0
        """The bits of all endpoints that are not purged."""

    @property
    def blocks(self) -> int:
        """Return how many distinct blocks are in memory."""
        return len(self._table)

    def held(self, endpoint: EndpointKey) -> int:
        """Return how many blocks an endpoint holds."""
        holder = self._holders.get(endpoint)
        return 0 if holder is None else holder.count

    def matched(self, blocks: tuple[int, ...], endpoint: EndpointKey) -> int:
        """Return how many of the first blocks an endpoint holds without a gap."""
        return self.match_all(blocks).get(endpoint, 0)

    def match_all(self, blocks: tuple[int, ...]) -> dict[EndpointKey, int]:
        """Return the depth of the match of each endpoint that holds at least the first block."""
        return self.deepest(self.match(blocks), len(self._holders))

    def match(self, blocks: tuple[int, ...]) -> Steps:
        """Walk a prompt from its root; ``deepest`` and ``depth`` read what comes out.

        Its cost does not grow with the number of endpoints that hold the prompt.
        """
        if len(blocks) > LONG:
            return self._match_long(blocks)
        steps: Steps = []
        alive = self._live
        depth = 0
        for depth, entry in enumerate(map(self._table.get, blocks)):
            if entry is None:
                break
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
        """Walk a long prompt by halving: who holds a block holds all before it (rule 2)."""
        steps: Steps = []
        find = self._table.get
        depth, last = 0, len(blocks) - 1
        entry = find(blocks[0])
        alive = 0 if entry is None else self._live & entry.mask
        while alive:
            low, high = depth, last + 1  # `low` has the same holders, `high` has not
            probe = last  # a turn of a conversation is held nearly to its end
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

    def deepest(self, steps: Steps, most: int, chance: float = 0.0) -> dict[EndpointKey, int]:
        """Return the depth of the match of those who hold most of it, ``most`` of them.

        Args:
            steps: From ``match``, with no change of the index since.
            most: Bound of the answer; of those beyond it the shallowest are left out.
            chance: In [0, 1): where among equals to begin, so that not always the same are left
                out.
        """
        found: dict[EndpointKey, int] = {}
        by_bit = self._by_bit
        deeper = 0
        for alive, depth in reversed(steps):
            bits = alive & ~deeper
            first = int(chance * bits.bit_length())
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

    def depths(self, steps: Steps, candidates: Sequence[Candidate]) -> list[int]:
        """Return how many of the first blocks of a matched prompt each candidate's replica holds.

        Args:
            steps: From ``match``; not empty.
            candidates: Whose.
        """
        find = self._bits.get
        alive, depth = steps[-1]
        if len(steps) == 1:
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
        """Return how many of the first blocks of a matched prompt an endpoint holds."""
        holder = self._holders.get(endpoint)
        if holder is not None:
            for alive, depth in reversed(steps):
                if alive & holder.bit:
                    return depth
        return 0

    def shared_depth(self, blocks: tuple[int, ...], matched: int, endpoints: int) -> int:
        """Return how many of the first blocks are common property, worth a copy everywhere.

        Copying a prefix of ``d`` blocks to ``n`` replicas costs ``n * d`` blocks of prefill. Once
        it was continued in that many ways (a system prompt, not a conversation), this is at most
        one block for each of them: cheap against sending them all to one replica.

        Args:
            blocks: The prompt.
            matched: The deepest match of any endpoint; deeper blocks are not looked at.
            endpoints: How many replicas could hold a copy.
        """
        return self._forks.shared(blocks, matched, endpoints)

    def branched_depth(self, blocks: tuple[int, ...], matched: int) -> int:
        """Return how many of the first blocks were continued in two ways or more.

        They belong to several prompts, so whoever computes them again has made a copy that others
        will use. Below them lies what belongs to one conversation.

        Args:
            blocks: The prompt.
            matched: The deepest match of any endpoint; deeper blocks are not looked at.
        """
        return self._forks.branched(blocks, matched)
