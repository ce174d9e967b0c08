"""The table of the prefix index: prompt blocks, the endpoints that hold them, and their owners.

A block's hash covers all blocks before it, so one flat table of hashes represents a radix tree.
It maps a block to its *owner*, the use (one insert on one endpoint) that touched it last, or to
several owners if several endpoints hold it.

Rules:

1. Matching is contiguous from the root: depth ``d`` means that the first ``d`` blocks are held.
2. An endpoint that holds a block holds all blocks before it, so long prompts are matched by binary
   search. Engines remove blocks in any order: prompts that begin on an endpoint that reports its
   cache are matched by a linear walk.
3. Each endpoint has a bit of its own. The bit of a purged endpoint is not live and matches nothing.
4. A block has at most one owner per endpoint: a confirmed use, the reported one, or a trial.
5. A trial *leans on* the one that owns the block before its own. A provisional block goes with the
   last trial that needs it: its owner, or one that leans on it directly or through others.
6. A purge takes effect at once and in constant time. Its memory is freed by ``reclaim``, which all
   that adds blocks calls for more than it adds.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ext_proc.routing.cache.forks import Forks
from ext_proc.routing.cache.prefix_uses import (
    Holder,
    RepeatedInsert,
    ReportedUse,
    SharedUse,
    Trial,
    Use,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.state.candidates import Candidate
    from ext_proc.routing.values.pool import EndpointKey

LONG: Final = 32
"""Number of blocks above which binary search is faster than a linear walk."""

Steps = list[tuple[int, int]]
"""Result of a walk from the root, by rising depth: the bits of the endpoints that hold at least
that many blocks, and the depth."""


class PrefixTable:
    """Prompt blocks and their owners.

    Args:
        max_blocks: Default bound of an endpoint's confirmed blocks.
        ttl_s: Default age in seconds at which an endpoint's untouched blocks are dropped.
    """

    def __init__(self, max_blocks: int, ttl_s: float) -> None:
        self.entries: dict[int, Use | SharedUse] = {}
        """The owner or owners of each block."""
        self.forks = Forks()
        self.holders: dict[EndpointKey, Holder] = {}
        """Endpoints that may hold blocks and are not purged."""
        self.reporting: dict[EndpointKey, bool] = {}
        """Endpoints that report their caches, and whether the reports are complete."""
        self.dead: deque[Holder] = deque()
        """Purged endpoints whose memory is not freed yet."""
        self._default = (max_blocks, ttl_s)
        self._limits: dict[EndpointKey, tuple[int, float]] = {}
        self._bits: dict[EndpointKey, int] = {}
        """The bit of each endpoint that is not purged."""
        self._by_bit: dict[int, Holder] = {}
        self._free_bits: list[int] = []
        self._live = 0
        """The bits of all endpoints that are not purged."""
        self._reported = 0
        """The bits of all endpoints that report their caches."""

    def __len__(self) -> int:
        return len(self.entries)

    # --- Queries --------------------------------------------------------------------------------

    def held(self, endpoint: EndpointKey) -> int:
        """Return the number of blocks that an endpoint holds, confirmed and provisional."""
        holder = self.holders.get(endpoint)
        return 0 if holder is None else holder.kept.count + holder.trials.count

    def matched(self, blocks: tuple[int, ...], endpoint: EndpointKey) -> int:
        """Return the number of leading blocks that an endpoint holds without a gap."""
        return self.match_all(blocks).get(endpoint, 0)

    def match_all(self, blocks: tuple[int, ...]) -> dict[EndpointKey, int]:
        """Return the match depth of each endpoint that holds at least the first block."""
        return self.deepest(self.match(blocks), len(self.holders))

    def match(self, blocks: tuple[int, ...]) -> Steps:
        """Match a prompt from its root; ``deepest``, ``depths`` and ``depth`` read the result.

        The cost does not depend on the number of endpoints that hold the prompt.
        """
        if len(blocks) > LONG:
            return self._match_long(blocks)
        steps: Steps = []
        alive = self._live
        depth = 0
        before: object = steps  # no entry
        for depth, entry in enumerate(map(self.entries.get, blocks)):
            if entry is before:  # of the same insert, so of the same endpoint
                continue
            if entry is None:
                break
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
        find = self.entries.get
        depth, last = 0, len(blocks) - 1
        entry = find(blocks[0])
        if entry is not None and entry.mask & self._reported:
            return self._match_reported(blocks, self._live & entry.mask)
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

    def _match_reported(self, blocks: tuple[int, ...], alive: int) -> Steps:
        """Match a long prompt whose first block endpoints hold of which some report."""
        steps: Steps = []
        depth = 0
        for entry in map(self.entries.get, blocks):
            mask = 0 if entry is None else alive & entry.mask
            if mask != alive:
                if depth:
                    steps.append((alive, depth))
                alive = mask
                if not mask:
                    return steps
            depth += 1
        if alive:
            steps.append((alive, depth))
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
        holder = self.holders.get(endpoint)
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
        return self.forks.shared(blocks, matched, endpoints)

    def branched_depth(self, blocks: tuple[int, ...], matched: int) -> int:
        """Return the number of leading blocks with two or more continuations.

        They belong to several prompts, so a replica that computes them again has a copy that other
        prompts will use. The blocks after them belong to one conversation. The prompt itself counts
        as a continuation where it leaves a known one.

        Args:
            blocks: The prompt.
            matched: The deepest match of any endpoint; deeper blocks are not considered.
        """
        known = matched < len(blocks) and blocks[matched] in self.entries
        return self.forks.branched(blocks, matched, leaves=matched > 0 and not known)

    # --- Endpoints ------------------------------------------------------------------------------

    def bound(self, endpoint: EndpointKey) -> int:
        """Return the maximum number of confirmed blocks of an endpoint."""
        return self._limits.get(endpoint, self._default)[0]

    def limit(self, endpoint: EndpointKey, max_blocks: int, ttl_s: float) -> Holder | None:
        """Set an endpoint's bounds; return its holder, which may be above them now."""
        self._limits[endpoint] = (max_blocks, ttl_s)
        holder = self.holders.get(endpoint)
        if holder is not None:
            holder.bound(max_blocks)
            holder.ttl_s = ttl_s
        return holder

    def enrol(self, endpoint: EndpointKey) -> Holder:
        """Add an endpoint that holds nothing."""
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._by_bit)
        holder = Holder(endpoint, bit, *self._limits.get(endpoint, self._default))
        self.holders[endpoint] = self._by_bit[bit] = holder
        self._bits[endpoint] = bit
        self._live |= bit
        complete = self.reporting.get(endpoint)
        if complete is None:
            self._reported &= ~bit
        else:
            self._reported |= bit
            holder.reported = ReportedUse(holder, complete=complete)
        return holder

    def purge(self, endpoint: EndpointKey) -> None:
        """Drop all blocks of an endpoint; it counts as empty from now on."""
        holder = self.holders.pop(endpoint, None)
        if holder is not None:
            del self._bits[endpoint]
            self._live &= ~holder.bit
            self.dead.append(holder)

    def forget(self, endpoint: EndpointKey) -> None:
        """Purge an endpoint that was removed, including its bounds."""
        self.purge(endpoint)
        self._limits.pop(endpoint, None)
        self.reporting.pop(endpoint, None)

    def reclaim(self, budget: int) -> int:
        """Free the memory of purged endpoints; return the rest of the budget."""
        while self.dead and budget > 0:
            holder = self.dead[0]
            kept, trials, reported = holder.kept, holder.trials, holder.reported
            while budget > 0:
                if trials.trials:
                    trial = next(iter(trials.trials))
                    budget -= len(trial.blocks)
                    self.withdraw(trial)
                elif kept.oldest is not None:
                    self.evict(holder, kept.oldest)
                    budget -= 1
                elif kept.count and reported is not None:
                    block = reported.pop() or 0
                    if self.owner(block, holder.bit) is reported:
                        self.drop(block, holder, reported)
                    budget -= 1
                else:
                    self.dead.popleft()
                    del self._by_bit[holder.bit]
                    self._free_bits.append(holder.bit)
                    break
        return budget

    # --- Owners of single blocks ----------------------------------------------------------------

    def owner(self, block: int, bit: int) -> Use | None:
        """Return the use of an endpoint, by its bit, that owns a block.

        Where one endpoint alone holds the block, it is that one's use, whichever endpoint it is.
        """
        entry = self.entries.get(block)
        if isinstance(entry, SharedUse):
            return entry.uses.get(bit)
        return entry

    def share(self, block: int, entry: Use | SharedUse, use: Use) -> Use | None:
        """Touch a block that other endpoints hold too; return this endpoint's earlier use of it."""
        if isinstance(entry, Use):
            self.entries[block] = SharedUse(entry, use)
            return None
        earlier = entry.uses.get(use.mask)
        entry.uses[use.mask] = use
        entry.mask |= use.mask
        return earlier

    def note_fork(self, blocks: Sequence[int], new: int) -> None:
        """Count a new continuation if a known prefix is followed by the block ``new``."""
        at = blocks.index(new)
        if at:
            self.forks.note(blocks[at - 1], at)

    def drop(self, block: int, holder: Holder, use: Use) -> None:
        """Take a block from its owner."""
        entry = self.entries[block]
        if isinstance(entry, Use):
            del self.entries[block]
            self.forks.forget(block)
        else:
            del entry.uses[holder.bit]
            entry.mask ^= holder.bit
            if len(entry.uses) == 1:
                self.entries[block] = next(iter(entry.uses.values()))
        use.live -= 1
        use.tenant.live -= 1
        use.lane.count -= 1

    def evict(self, holder: Holder, use: Use) -> None:
        """Drop the leaf of one of an endpoint's confirmed uses."""
        while use.live and use.blocks:
            block = use.blocks.pop()
            if self.owner(block, holder.bit) is use:
                self.drop(block, holder, use)
                break
        if use.live == 0 or not use.blocks:
            holder.kept.unlink(use)

    def withdraw(self, trial: Trial | RepeatedInsert) -> None:
        """Drop a provisional insert: the blocks on which no other one leans.

        It has no effect on one that is confirmed or was dropped before.
        """
        if not trial.pending:
            return
        trial.pending = False
        if isinstance(trial, RepeatedInsert):
            trial.holder.trials.repeats -= 1
        else:
            del trial.holder.trials.trials[trial]
            self._recede(trial)

    def release(self, trial: Trial) -> None:
        """End the claim of a trial, which is confirmed, on the one that it leans on, if any."""
        if trial.leans is not None and (ended := _released(trial)) is not None:
            self._recede(ended)

    def _recede(self, trial: Trial) -> None:
        """Drop what nothing needs of a trial that is not pending, and of those it leans on."""
        holder = trial.holder
        ended: Trial | None = trial
        while ended is not None:
            claims = ended.claims
            needed = max(ended.start, *claims) if claims else ended.start
            for block in reversed(ended.blocks[needed : ended.stop]):
                if self.owner(block, holder.bit) is ended:
                    self.drop(block, holder, ended)
            ended.stop = min(ended.stop, needed)
            ended = None if claims else _released(ended)


def _released(trial: Trial) -> Trial | None:
    """End a trial's claim; return the trial that it leaned on if that one has ended, too."""
    before, trial.leans = trial.leans, None
    if before is None or before.claims is None:
        return None
    left = before.claims[trial.start] - 1
    if left:
        before.claims[trial.start] = left
    else:
        del before.claims[trial.start]
    return None if before.pending or before.confirmed else before
