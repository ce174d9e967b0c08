"""Events that end or hold a rollout without statistics. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.canary.rollout import CanaryGuard

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPS: Final = 3
"""How often one replica goes out of use since the rollout began in a crash loop."""
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


def guards_of(
    canary: ArmReplicas,
    stable: ArmReplicas,
    percent: float,
    following: float,
    alerts: Sequence[str] = (),
) -> list[CanaryGuard]:
    """Return the guards that hold now.

    Args:
        canary: The canary's replicas.
        stable: Stable's.
        percent: The canary's share in force.
        following: Its share in the next step, in percent.
        alerts: Alerts that fire, in words.
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
    found += [CanaryGuard(ends=True, why=f"alert: {each}") for each in alerts]
    found += [CanaryGuard(ends=False, why=f"load refused: {each}") for each in canary.refused]
    found += [CanaryGuard(ends=False, why=f"parity: {each}") for each in canary.differences]
    need = work(following, canary.usable, stable.total)
    if need > 1.0:
        why = f"capacity: {canary.usable} usable replicas for {following:g} % of the sessions"
        found.append(CanaryGuard(ends=False, why=f"{why}, {stable.total} carry all today"))
    return found


def work(percent: float, canary: int, stable: int) -> float:
    """Return the work of a canary replica; 1 is that of stable's where they carry everything."""
    return float("inf") if not canary else (percent / _WHOLE) * stable / canary


def load_of(percent: float, canary: int, stable: int) -> float | None:
    """Return the work of the canary's replicas over that of stable's; ``None`` = it has none."""
    if not canary or not stable or percent >= _WHOLE:
        return None
    return (percent / canary) / ((_WHOLE - percent) / stable)
