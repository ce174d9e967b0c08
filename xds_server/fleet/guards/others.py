"""What operators have changed meanwhile, and a change that did not know of it.

Rules:

1. A change that names the revision on which it is based is made only while that one is in force.
2. A whole fleet that names none may have been written before a drain or a step of a canary. It is
   refused if it would end the one or move the other; all else in it is what its author wants.
3. A rollback keeps drains that were set since.
4. A forced change is made; its revision says what it overrode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_server.fleet.change import MAX_DRAINED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from xds_server.fleet.model.fleet import Fleet, PoolSpec
    from xds_server.fleet.revision import Revision

MAX_NAMED = 8
"""Most revisions or replicas that a message names."""


class ChangedMeanwhile(ValueError):  # noqa: N818 - reads as the sentence it is
    """The revision on which a change is based is no longer in force; see rule 1."""

    def __init__(self, based_on: int, now: int, since: Sequence[Revision]) -> None:
        known = [each for each in since if based_on < each.number <= now][:MAX_NAMED]
        told = [
            f"{each.number} by {each.author or 'an unnamed author'}: {_first(each)}"
            for each in known
        ]
        super().__init__(
            f"revision {now} is in force, not {based_on}, on which this change is based"
            f"{'; since then: ' if told else ''}{'; '.join(told)}. See the whole difference"
            f" (tidegate diff {based_on}); if this change is still right, name {now} (--based-on"
            f" {now})"
        )


class UndoesOthers(ValueError):  # noqa: N818 - reads as the sentence it is
    """A fleet that may be old would undo what operators did at run time; see rule 2."""

    def __init__(self, undone: Sequence[str], now: int) -> None:
        more = [f"and {len(undone) - MAX_NAMED} more"] if len(undone) > MAX_NAMED else []
        super().__init__(
            f"this would undo what was set at run time: {'; '.join([*undone[:MAX_NAMED], *more])}."
            " Write it into this fleet too, or name the revision that you have seen (--based-on"
            f" {now}), or force the change (--force)"
        )


def undone(live: Fleet, wanted: Fleet, rollouts: Collection[str]) -> list[str]:
    """Return the drains that a fleet would end, and the rollouts whose weights it would change.

    Args:
        live: The fleet in force.
        wanted: The fleet that shall come into force.
        rollouts: Names of the pools with a rollout that runs.
    """
    return [
        line
        for before, after in _both(live, wanted)
        for line in (*_ended(before, after), *_moved(before, after, rollouts))
    ]


def with_drains(wanted: Fleet, live: Fleet) -> tuple[Fleet, list[str]]:
    """Return a fleet with the drains of the one in force, and what was kept, one line each.

    Args:
        wanted: The fleet that shall come into force.
        live: The fleet in force.
    """
    kept: list[str] = []
    pools = {pool.name: pool for pool in wanted.pools}
    for before, after in _both(live, wanted):
        drains = _drains(before) - _drains(after)
        written = {each.id for each in after.endpoints}
        endpoints = tuple(
            each.model_copy(update={"draining": True}) if each.id in drains else each
            for each in after.endpoints
        )
        # A replica that the fleet does not write may be found again, and then drains by this list.
        found = sorted(drains - written) if after.endpoints_from else []
        if found or drains & written:
            listed = (*after.drained, *found)[:MAX_DRAINED]
            pools[after.name] = after.model_copy(update={"endpoints": endpoints, "drained": listed})
            kept += [
                f"{each} of pool '{after.name}' drains on; `tidegate undrain {after.name}/{each}`"
                " ends that"
                for each in sorted(drains & {*written, *found})
            ]
    return wanted.model_copy(update={"pools": tuple(pools.values())}), kept


def _both(live: Fleet, wanted: Fleet) -> Iterator[tuple[PoolSpec, PoolSpec]]:
    pools = {pool.name: pool for pool in live.pools}
    for pool in wanted.pools:
        before = pools.get(pool.name)
        if before is not None and before is not pool:
            yield before, pool


def _drains(pool: PoolSpec) -> set[str]:
    return {*pool.drained, *(each.id for each in pool.endpoints if each.draining)}


def _ended(before: PoolSpec, after: PoolSpec) -> Iterable[str]:
    ended = _drains(before) - _drains(after)
    here = {each.id for each in after.endpoints} | set(before.drained)
    return [f"the drain of {each} (pool '{after.name}')" for each in sorted(ended & here)]


def _moved(before: PoolSpec, after: PoolSpec, rollouts: Collection[str]) -> Iterable[str]:
    if after.name not in rollouts:
        return ()
    was, now = ({v.name: v.weight for v in pool.variants} for pool in (before, after))
    return () if was == now else (f"the weights of the running canary of pool '{after.name}'",)


def _first(revision: Revision) -> str:
    if not revision.changes:
        return "no differences"
    more = len(revision.changes) - 1
    return revision.changes[0] + (f" and {more} more" if more else "")
