"""The choosers by name: every policy of the picker, then those that exist only here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from bench.simulate.choosers.aibrix import PrefixCache
from bench.simulate.choosers.cache_aware import CacheAware
from bench.simulate.choosers.chwbl import BoundedHash
from bench.simulate.choosers.dynamo import Dynamo
from bench.simulate.choosers.llm_d import AffinityFilter
from bench.simulate.choosers.oracle import Oracle, Probe
from bench.simulate.choosers.production import Production
from bench.simulate.choosers.several import Several
from bench.simulate.choosers.smg import LeastLoad
from ext_proc.routing.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.simulate.choosers.base import Chooser, World

OTHERS: Final[dict[str, Callable[[World], Chooser]]] = {
    "cache-aware": CacheAware,
    "smg-least-load": LeastLoad,
    "dynamo": Dynamo,
    "llm-d": AffinityFilter,
    "aibrix": PrefixCache,
    "kubeai-chwbl": BoundedHash,
    "chwbl-depth2": lambda world: BoundedHash(world, depth=2),
    "probe": Probe,
    "oracle": Oracle,
}
"""Published rules of other routers, and what bounds or guides ours."""


def names() -> list[str]:
    """Return the names of all choosers."""
    return [*POLICIES, *OTHERS]


def make_chooser(name: str, world: World) -> Chooser:
    """Make a chooser, or one per picker where the scenario has several.

    Raises:
        ValueError: Nothing has that name; the message lists the names.
    """
    if name in POLICIES:
        make: Callable[[World], Chooser] = partial(Production, name)
    elif name in OTHERS:
        make = OTHERS[name]
    else:
        raise ValueError(f"unknown policy {name!r}; use one of: {', '.join(names())}")
    return make(world) if world.scenario.pickers == 1 else Several(make, world)
