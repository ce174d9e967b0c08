"""Schedulers by name: all policies of the picker, then those of the simulator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from bench.simulate.schedulers.aibrix import PrefixCache
from bench.simulate.schedulers.cache_aware import CacheAware
from bench.simulate.schedulers.chwbl import BoundedHash
from bench.simulate.schedulers.dynamo import Dynamo
from bench.simulate.schedulers.llm_d import (
    NO_HIT,
    AffinityFilter,
    WeightedScorers,
    flow_control,
    sheddable,
)
from bench.simulate.schedulers.local import FewestRequests
from bench.simulate.schedulers.oracle import Oracle, Probe
from bench.simulate.schedulers.production import ProductionScheduler
from bench.simulate.schedulers.several_pickers import SeveralPickers
from bench.simulate.schedulers.smg import LeastLoad, queued
from ext_proc.packages import load_policies
from ext_proc.routing.policies import POLICIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.simulate.schedulers.base import SimulatedScheduler, World

OTHERS: Final[dict[str, Callable[[World], SimulatedScheduler]]] = {
    "cache-aware": CacheAware,
    "smg-least-load": LeastLoad,
    "smg-queue": queued,
    "dynamo": Dynamo,
    "llm-d": AffinityFilter,
    "llm-d-chart": WeightedScorers,
    "llm-d-sheddable": sheddable,
    "llm-d-flow-control": flow_control,
    "llm-d-no-hit-lru": partial(WeightedScorers, no_hit=NO_HIT),
    "aibrix": PrefixCache,
    "kubeai-chwbl": BoundedHash,
    "chwbl-depth2": lambda world: BoundedHash(world, depth=2),
    "fewest-requests": FewestRequests,
    "probe": Probe,
    "oracle": Oracle,
    "oracle-exact": partial(Oracle, exact=True),
}
"""Published rules of other routers, and reference schedulers."""


def names() -> list[str]:
    """Return the names of all schedulers, the picker's policies first."""
    load_policies()
    return [*POLICIES, *OTHERS]


def make_scheduler(name: str, world: World) -> SimulatedScheduler:
    """Create a scheduler, or one per picker if the scenario has several.

    Raises:
        ValueError: The name is unknown; the message lists the names.
    """
    if "." in name:
        load_policies()
    if name in POLICIES:
        make: Callable[[World], SimulatedScheduler] = partial(ProductionScheduler, name)
    elif name in OTHERS:
        make = OTHERS[name]
    else:
        raise ValueError(f"unknown policy {name!r}; use one of: {', '.join(names())}")
    return make(world) if world.scenario.pickers == 1 else SeveralPickers(make, world)
