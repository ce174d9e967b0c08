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
    from ext_proc.routing.router import Router

SWEEP_S: Final = 1.0
"""Interval between two sweeps of the registry for stalled replicas."""

_log = structlog.stdlib.get_logger("ext_proc")


async def sweep(
    router: Router, watch: ReplicaWatch, leave: Callable[[float], None] = lambda _: None
) -> NoReturn:
    """Sweep until cancelled; ``leave`` lets requests leave hung replicas at monotonic seconds."""
    while True:
        await asyncio.sleep(SWEEP_S)
        router.registry.sweep(time.monotonic())
        leave(time.monotonic())
        for found in router.suspicion.sweep(time.monotonic()):
            _log.warning(
                "deadly_request",
                fingerprint=shown(found.fingerprint),
                replicas=found.replicas,
                refused_for_s=REFUSED_S,
            )
        watch.look()
