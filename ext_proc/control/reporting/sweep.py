"""The sweep: once a second, what only time changes. Frozen replicas, deaths, conditions."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from ext_proc.blame.deaths import REFUSED_S
from ext_proc.blame.fingerprint import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.control.reporting.watch import ReplicaWatch
    from ext_proc.routing.registry import EndpointRegistry
    from ext_proc.routing.suspicion import Suspicion

SWEEP_S: Final = 1.0
"""Interval between two sweeps of the registry for stalled replicas."""

_log = structlog.stdlib.get_logger("ext_proc")


async def sweep(
    registry: EndpointRegistry,
    suspicion: Suspicion,
    watch: ReplicaWatch,
    leave: Callable[[float], None] = lambda _: None,
) -> NoReturn:
    """Sweep until cancelled.

    Args:
        registry: The replicas, whose stalls are found.
        suspicion: Requests that replicas died with; those refused from now on are logged.
        watch: Looks at the replicas after each sweep.
        leave: Lets requests leave replicas that hang at a time, monotonic seconds.
    """
    while True:
        await asyncio.sleep(SWEEP_S)
        registry.sweep(time.monotonic())
        leave(time.monotonic())
        for found in suspicion.sweep(time.monotonic()):
            _log.warning(
                "deadly_request",
                fingerprint=shown(found.fingerprint),
                replicas=found.replicas,
                refused_for_s=REFUSED_S,
            )
        watch.look()
