"""Parts of the prefix index: uses (inserts), and the endpoints and tenants that they belong to.

Rules:

1. A use is in one *lane* of its endpoint: ``kept`` (confirmed blocks) or ``trials`` (provisional
   ones). ``kept`` lists its uses by age, and those of each tenant by age.
2. A lane counts its blocks, and in ``kept`` a tenant those of its uses. A tenant without uses is
   dropped.
3. A tenant that has more than ``1 / SHARES`` of a lane's bound, while others have blocks there,
   gives way first, also to itself: at the bound, an insert evicts from the oldest use of the tenant
   that was last seen above its share, and without one from the oldest use of all. At the bound of
   ``trials`` the inserts of tenants above their share are displaced first.
4. Blocks that several tenants sent belong to ``SHARED_TENANT``, which has no share: a tenant that
   gives way to itself takes no common prefix with it.
5. A tenant is a request's cache salt, else its session, as a number; all requests with neither are
   one tenant.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import xxhash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.pool import EndpointKey
    from ext_proc.routing.values.request import Features


SPECULATIVE_S: Final = 2.0
"""Seconds for which the rest of a prompt counts as held where reports have some of its blocks."""
DOUBTS: Final = 64
"""Unconfirmed prompts in a row from which on reports and our hashes are taken not to match."""
MAX_EXPECTED: Final = 64
SHARES: Final = 4
"""A tenant's share of a lane's bound is one part of so many."""
TRIAL_SHARES: Final = 10
"""Provisional blocks of an endpoint: one part of so many of its bound, but at least
``TRIAL_BLOCKS``, or the bound itself if it is lower."""
TRIAL_BLOCKS: Final = 2048
"""The longest prompt, which must have room."""
UNKNOWN_TENANT: Final = 0
"""The tenant of all requests that name none."""
SHARED_TENANT: Final = -1


class Tenant:
    """The uses of one tenant in one lane."""

    __slots__ = ("key", "live", "newest", "oldest")

    def __init__(self, key: int) -> None:
        self.key = key
        self.live = 0
        """Blocks of its uses."""
        self.oldest: Use | None = None
        self.newest: Use | None = None


class Use:
    """One insert: the blocks that no later insert has touched, root first."""

    __slots__ = (
        "at",
        "before",
        "behind",
        "blocks",
        "holder",
        "lane",
        "live",
        "mask",
        "newer",
        "older",
        "plain",
        "tenant",
    )

    def __init__(
        self,
        holder: Holder,
        blocks: array[int],
        at: float,
        lane: Lane | TrialLane,
        tenant: Tenant,
    ) -> None:
        self.holder = holder
        self.mask = holder.bit
        self.blocks = blocks
        self.live = 0
        self.at = at
        self.lane = lane
        self.tenant = tenant
        self.older: Use | None = None
        self.newer: Use | None = None
        self.before: Use | None = None
        """The next older use of the same tenant."""
        self.behind: Use | None = None
        """The next newer use of the same tenant."""
        self.plain = True
        """Whether no hash occurs twice in it."""


class Trial(Use):
    """A provisional insert: ``blocks`` is the whole prompt, of which it owns what was new."""

    __slots__ = (
        "_before",
        "claims",
        "confirmed",
        "fork",
        "leans",
        "pending",
        "recomputed",
        "start",
        "stop",
        "told",
        "whose",
    )

    def __init__(
        self, holder: Holder, blocks: array[int], at: float, lane: TrialLane, whose: int
    ) -> None:
        self.holder = holder  # not by the base's method: this is the hot path
        self.mask = holder.bit
        self.blocks = blocks
        self.live = 0
        self.at = at
        self.lane = lane
        self.tenant = lane.everyone
        self.plain = True
        self.whose = whose
        """Its tenant."""
        self.start = 0
        """Number of leading blocks that the endpoint held before."""
        self.stop = len(blocks)
        """End of the blocks that it may still own."""
        self.leans: Trial | None = None
        """The earlier trial that owns the block before its own."""
        self._before = 0
        self.claims: dict[int, int] | None = None
        """Numbers of its leading blocks on which later trials lean: how many trials, by depth."""
        self.pending = True
        """Whether it is listed; false once it is withdrawn, displaced or confirmed."""
        self.confirmed = False
        self.fork: int | None = None
        """The block that it noted as the beginning of a continuation of known blocks."""
        self.told = False
        """Whether its endpoint has reported blocks of it."""
        self.recomputed = False
        """Whether its engine computes all of it, also what it holds."""

    def lean(self, owner: Trial) -> None:
        """Lean on the earlier trial that owns the block before its own, which it claims."""
        self.leans = owner
        self._before = owner.computed
        start, claims = self.start, owner.claims
        if claims is None:
            owner.claims = {start: 1}
        else:
            claims[start] = claims.get(start, 0) + 1

    @property
    def computed(self) -> int:
        """Number of its leading blocks that the endpoint is known to have computed for others.

        It may be too low while a trial on which it leans indirectly has just been confirmed.
        """
        leans = self.leans
        return self.start if leans is None or leans.confirmed else self._before


class RepeatedInsert:
    """A provisional insert of a prompt whose blocks are all confirmed there: it owns none."""

    __slots__ = ("at", "blocks", "holder", "pending", "whose")

    def __init__(self, holder: Holder, blocks: array[int], at: float, whose: int) -> None:
        self.holder = holder
        self.blocks = blocks
        self.at = at
        self.whose = whose
        """Its tenant."""
        self.pending = True
        """Whether its lane counts it; false once it is withdrawn or confirmed."""


class SharedUse:
    """The uses of one block that several endpoints hold, by the endpoint's bit."""

    __slots__ = ("mask", "uses")

    def __init__(self, first: Use, second: Use) -> None:
        self.mask = first.mask | second.mask
        self.uses = {first.mask: first, second.mask: second}


class Lane:
    """Uses of one endpoint by age.

    Attributes:
        count: Number of blocks.
        max_blocks: Bound of ``count``; the index keeps it.
    """

    __slots__ = ("count", "heavy", "max_blocks", "newest", "oldest", "tenants")

    def __init__(self, max_blocks: int) -> None:
        self.count = 0
        self.heavy: Tenant | None = None
        """The tenant last seen above its share."""
        self.max_blocks = max_blocks
        self.oldest: Use | None = None
        self.newest: Use | None = None
        self.tenants: dict[int, Tenant] = {}

    def tenant(self, key: int) -> Tenant:
        """Return a tenant; it is kept once it has a use."""
        return self.tenants.get(key) or Tenant(key)

    def append(self, use: Use) -> None:
        """Append a use as the newest one, also of its tenant."""
        newest = use.older = self.newest
        use.newer = None
        if newest is None:
            self.oldest = use
        else:
            newest.newer = use
        self.newest = use
        tenant = use.tenant
        last = use.before = tenant.newest
        use.behind = None
        if last is None:
            tenant.oldest = use
            self.tenants[tenant.key] = tenant
        else:
            last.behind = use
        tenant.newest = use

    def unlink(self, use: Use) -> None:
        """Remove a use from the lists."""
        older, newer = use.older, use.newer
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        if newer is None:
            self.newest = older
        else:
            newer.older = older
        tenant, older, newer = use.tenant, use.before, use.behind
        if older is None:
            tenant.oldest = newer
        else:
            older.behind = newer
        if newer is None:
            tenant.newest = older
            if older is None:
                del self.tenants[tenant.key]
        else:
            newer.before = older

    def renew(self, use: Use) -> None:
        """Make a listed use the newest one, also of its tenant."""
        newest, newer = self.newest, use.newer
        if newest is None or newer is None:  # it is the newest
            return
        older = newer.older = use.older
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        newest.newer, use.older, use.newer = use, newest, None
        self.newest = use
        tenant = use.tenant
        last, newer = tenant.newest, use.behind
        if last is None or newer is None:
            return
        older = newer.before = use.before
        if older is None:
            tenant.oldest = newer
        else:
            older.behind = newer
        last.behind, use.before, use.behind = use, last, None
        tenant.newest = use

    def above(self, tenant: Tenant) -> bool:
        """Return whether a tenant has more than its share while others have blocks."""
        live = tenant.live
        return SHARES * live > self.max_blocks and live < self.count

    def victim(self, tenant: Tenant) -> Use | None:
        """Return the use from which an insert of a tenant evicts (rule 3)."""
        if tenant.key != SHARED_TENANT and self.above(tenant):
            self.heavy = tenant
        heavy = self.heavy
        if heavy is not None:
            if heavy.oldest is not None and self.above(heavy):
                return heavy.oldest
            self.heavy = None
        return self.oldest


class TrialLane:
    """Provisional inserts of one endpoint.

    Attributes:
        count: Number of blocks.
        max_blocks: Bound of ``count``; the index keeps it.
        trials: The inserts by age. A dictionary, because most leave it soon, in about this order.
        repeats: Number of inserts that own no blocks and are not in ``trials``.
    """

    __slots__ = ("count", "everyone", "max_blocks", "repeats", "trials")

    def __init__(self) -> None:
        self.count = 0
        self.max_blocks = 0
        self.trials: dict[Trial, None] = {}
        self.repeats = 0
        self.everyone = Tenant(UNKNOWN_TENANT)
        """Stands for all tenants: their blocks are not counted one by one."""


class Holder:
    """One endpoint's part of the index."""

    __slots__ = ("bit", "kept", "key", "reported", "trials", "ttl_s")

    def __init__(self, key: EndpointKey, bit: int, max_blocks: int, ttl_s: float) -> None:
        self.key = key
        self.bit = bit
        self.kept = Lane(max_blocks)
        self.trials = TrialLane()
        self.bound(max_blocks)
        self.ttl_s = ttl_s
        self.reported: ReportedUse | None = None
        """The blocks that it reports; ``None`` for an endpoint that does not report."""

    def bound(self, max_blocks: int) -> None:
        """Set the bounds of both lanes."""
        self.kept.max_blocks = max_blocks
        self.trials.max_blocks = max(max_blocks // TRIAL_SHARES, min(max_blocks, TRIAL_BLOCKS))


class ReportedUse(Use):
    """The blocks that an endpoint reports as held, under its engines' own names (hashes).

    It is not in the holder's list by age: reported blocks do not expire.
    """

    __slots__ = ("complete", "copies", "doubts", "expected", "names", "others", "waiting")

    def __init__(self, holder: Holder, *, complete: bool) -> None:
        super().__init__(holder, array("q"), 0.0, holder.kept, Tenant(SHARED_TENANT))
        self.plain = False
        self.names: dict[int, dict[int, int]] = {}
        """By engine: block by name."""
        self.copies: dict[tuple[int, int], int] = {}
        """Additional copies of a block in one engine, by engine and name; few blocks have any."""
        self.others: dict[int, int] = {}
        """Number of additional names of a block, mostly from other engines."""
        self.complete = complete
        self.doubts = 0
        self.waiting: dict[Use, None] = {}
        """Confirmed uses with blocks that it has not reported of prompts that it has."""
        self.expected: list[tuple[int, ...]] = []
        """Prompts that it will compute from their root, the latest last; at most
        ``MAX_EXPECTED``."""

    @property
    def believed(self) -> bool:
        """Whether its reports are complete and fit the prompts that it was sent."""
        return self.complete and self.doubts < DOUBTS

    def confirmed(self) -> None:
        """Note that it reported a block whose hash we sent or looked up, so the hashes match."""
        self.doubts = 0

    def expect(self, blocks: tuple[int, ...]) -> None:
        """Note that one of its engines will compute a prompt, also the blocks that it holds."""
        self.expected.append(blocks)
        if len(self.expected) > MAX_EXPECTED:
            del self.expected[0]

    def forgo(self, blocks: tuple[int, ...]) -> None:
        """Note that the request of an expected prompt failed."""
        if blocks in self.expected:
            self.expected.remove(blocks)

    def computed(self, blocks: tuple[int, ...]) -> bool:
        """Return whether a report from the root is of an expected prompt, and expect it no more.

        An engine reports what it computes at once, so the blocks may be only its first ones.
        """
        end = len(blocks)
        for at, prompt in enumerate(self.expected):
            if prompt[:end] == blocks:
                del self.expected[at]
                return True
        return False

    def missing(
        self, blocks: tuple[int, ...], table: Mapping[int, Use | SharedUse]
    ) -> tuple[int, ...]:
        """Return the blocks of a prompt sent to it that it has not reported."""
        missing = tuple([block for block in blocks if not self.has(table.get(block))])
        if len(missing) < len(blocks):
            self.confirmed()
        elif blocks:
            self.doubts = min(self.doubts + 1, DOUBTS)
        return missing

    def has(self, entry: Use | SharedUse | None) -> bool:
        """Return whether it reported the block that has this entry."""
        if isinstance(entry, SharedUse):
            return entry.uses.get(self.mask) is self
        return entry is self

    def pop(self) -> int | None:
        """Remove any name and return its block, ``None`` if none is left."""
        while self.names:
            engine, names = next(iter(self.names.items()))
            if names:
                return names.popitem()[1]
            del self.names[engine]
        return None


def tenant_of(features: Features, seed: int) -> int:
    """Return the tenant of a request: 1 to ``2 ** 63 - 1``, or ``UNKNOWN_TENANT``.

    Args:
        features: Features of the request.
        seed: The fleet's seed, below ``2 ** 64``; outsiders cannot search for equal numbers.
    """
    name = features.salt
    if name is None:
        name = features.session
        if name is None:
            return UNKNOWN_TENANT
    else:
        name = f"\0{name}"
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), seed) >> 1 | 1
