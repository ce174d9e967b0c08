"""Readiness probes in all workers of a picker, and what they say of replicas that died."""

from __future__ import annotations

import random
import time

import pytest

from ext_proc.blame.deaths import BACK_S, Who
from ext_proc.probing import Probing
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.workers.news import Probed

MEMBER = Who(b"an innocent one")


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_a_failed_probe_tells_when_a_dead_replica_is_back(leads):
    """Without it, members of an operator's kill would wait a minute where there are no others."""
    router, told = Router(random.Random(1)), []
    deaths = router.suspicion.deaths
    members = router.registry.members
    probing = Probing(router.conditions, router.placement, router.suspicion, members, told.append)
    now = time.monotonic()
    for replica in ("r0", "r1"):
        deaths.died(replica, MEMBER, now)
    take = probing._probed if leads else probing.follow
    take(Probed("llm", EndpointKey("r0", 1), ready=False, why="refuses connections"))
    take(Probed("llm", EndpointKey("r1", 1), ready=True))
    noted = deaths.gone_at("r0")
    assert now <= noted <= time.monotonic()
    assert deaths.confined(MEMBER, noted + BACK_S - 0.1) == frozenset()
    assert deaths.confined(MEMBER, noted + BACK_S) == {"r0"}
    assert len(told) == (2 if leads else 0)
