"""Events that end or hold a rollout without statistics. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.canary.rollout import CanaryGuard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xds_server.applications.loading.plan import Answered

LOOPS: Final = 3
"""How often one replica goes out of use since the rollout began in a crash loop."""
LEAST_COPIES: Final = 20
"""Answers of each arm that a comparison of their own counters needs."""
FAR_MORE: Final = 2.0
GOOD_SHARE: Final = 0.01
"""Share of failures that is good enough, whatever stable's is."""
FAR_SLOWER: Final = 3.0
SLOWER_S: Final = 0.02
"""Least difference of two means: where an engine takes requests and answers later, replicas count
only the taking, which is below it."""
_SIGMAS: Final = 5.0
_NONE_SEEN: Final = 3.0
"""Failures that may be expected where none was seen (95 %)."""
_WHOLE: Final = 100.0


class ArmReplicas(NamedTuple):
    """The replicas of a variant, as pickers and loads see them."""

    total: int
    usable: int
    """Those that get new requests: no condition keeps them out."""
    falls: Sequence[tuple[str, int]] = ()
    """Ids and how often each went out of use since the rollout began."""
    starved: Sequence[str] = ()
    """Ids of those whose GPUs have too little memory left."""
    copies: Sequence[str] = ()
    """What is wrong with their answers to copies, in words."""
    refused: Sequence[str] = ()
    """What replicas said that would not load the variant's model."""
    differences: Sequence[str] = ()
    """What ``tidegate model parity`` finds unequal among them."""
    uncopied: bool = False
    """Whether they count their answers, and have given too few to copies."""


class PoolAlerts(NamedTuple):
    """The alerts of a pool's rollouts, in words."""

    firing: Sequence[str] = ()
    unknown: Sequence[str] = ()
    """Why it is not known whether others fire."""


NO_ALERTS: Final = PoolAlerts()


def guards_of(
    canary: ArmReplicas,
    stable: ArmReplicas,
    percent: float,
    following: float,
    alerts: PoolAlerts = NO_ALERTS,
) -> list[CanaryGuard]:
    """Return the guards that hold now.

    Args:
        canary: The canary's replicas.
        stable: Stable's.
        percent: The canary's share in force.
        following: Its share in the next step, in percent.
        alerts: Its alerts.
    """
    found = [
        CanaryGuard(ends=True, why=f"crash loop: {name} went out of use {times} times")
        for name, times in canary.falls
        if times >= LOOPS
    ]
    found += [
        CanaryGuard(ends=True, why=f"memory: {each} has none left") for each in canary.starved
    ]
    found += [CanaryGuard(ends=True, why=f"copies: {each}") for each in canary.copies]
    if percent > 0.0 and not canary.usable:
        found.append(
            CanaryGuard(ends=True, why=f"none of {canary.total} canary replicas is usable")
        )
    found += [CanaryGuard(ends=True, why=f"alert: {each}") for each in alerts.firing]
    found += [CanaryGuard(ends=False, why=f"alerts: {each}") for each in alerts.unknown]
    found += [CanaryGuard(ends=False, why=f"load refused: {each}") for each in canary.refused]
    found += [CanaryGuard(ends=False, why=f"parity: {each}") for each in canary.differences]
    if canary.uncopied:
        why = f"copies: fewer than {LEAST_COPIES} were answered"
        found.append(CanaryGuard(ends=False, why=why))
    need = work(following, canary.usable, stable.total)
    if need > 1.0:
        why = f"capacity: {canary.usable} usable replicas for {following:g} % of the sessions"
        found.append(CanaryGuard(ends=False, why=f"{why}, {stable.total} carry all today"))
    return found


def faults_of_copies(canary: Answered, stable: Answered) -> list[str]:
    """Return what is far worse by the replicas' own counters while the canary gets copies.

    Its replicas may carry more than stable's, so their queues are not compared. Failures are too
    many beyond ``FAR_MORE`` times the greatest share that stable's may have, and five standard
    deviations.

    Args:
        canary: The counts of its replicas since the copies began.
        stable: Stable's.
    """
    found: list[str] = []
    if min(canary.total, stable.total) < LEAST_COPIES:
        return found
    usual = stable.failed / stable.total
    greatest = (stable.failed + _NONE_SEEN) / stable.total
    share = min(1.0, max(GOOD_SHARE, FAR_MORE * greatest))
    expected = canary.total * share
    if canary.failed > expected + _SIGMAS * (expected * (1.0 - share)) ** 0.5:
        found.append(f"{canary.failed} of {canary.total} failed, of stable {_WHOLE * usual:.2g} %")
    mean_s, usual_s = canary.mean_s, stable.mean_s
    if mean_s is None or usual_s is None:
        return found
    if mean_s > FAR_SLOWER * usual_s and mean_s > usual_s + SLOWER_S:
        found.append(f"they compute {mean_s * 1e3:.0f} ms, stable's {usual_s * 1e3:.0f} ms")
    return found


def work(percent: float, canary: int, stable: int) -> float:
    """Return the work of a canary replica; 1 is that of stable's where they carry everything."""
    return float("inf") if not canary else (percent / _WHOLE) * stable / canary


def load_of(percent: float, canary: int, stable: int) -> float | None:
    """Return the work of the canary's replicas over that of stable's; ``None`` = it has none."""
    if not canary or not stable or percent >= _WHOLE:
        return None
    return (percent / canary) / ((_WHOLE - percent) / stable)
