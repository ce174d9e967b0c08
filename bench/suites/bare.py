"""A stack with a bare picker (``bench/cost/bare_picker.py``): the minimum cost of ext_proc.

Control server and Envoy are those of a normal stack. The real picker is killed and a bare picker
takes its address; it sends recorded replies and makes no decisions.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp

from bench.overhead import POOL_MODES, UPSTREAMS, replicas
from ext_proc.server import transport
from tidegate.stack.local import ENVOY, PICKER, LocalStack
from tidegate.stack.probes import picker_healthy
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

MODES: Final = ("none", "peek")
"""Measured body modes; ``full`` adds only Envoy's buffering."""
READY_S: Final = 30.0
_SCRIPT: Final = Path(__file__).resolve().parents[1] / "cost" / "bare_picker.py"


class BareStack:
    """A running stack with a bare picker."""

    def __init__(self, stack: LocalStack, supervisor: Supervisor) -> None:
        self.http_address = stack.http_address
        self._pids = {ENVOY: stack.pid(ENVOY), PICKER: supervisor.pid(PICKER)}

    def pid(self, service: str) -> int:
        """Return the process id of ``ENVOY`` or of the bare ``PICKER``."""
        return self._pids[service]


@asynccontextmanager
async def bare_stack(addresses: Sequence[str]) -> AsyncIterator[BareStack]:
    """Start a stack over instant upstreams; wait until Envoy uses the bare picker.

    Args:
        addresses: Addresses of the upstreams, as for ``bench.overhead.replicas``.
    """
    routing = {name: {"routing": {"body": mode}} for name, mode in POOL_MODES.items()}
    async with (
        LocalStack(
            replicas=replicas(list(addresses)), fleet={"pools": routing}, concurrency=1
        ) as stack,
        aiohttp.ClientSession() as session,
    ):

        async def healthy() -> str | None:
            return await picker_healthy(session, stack.envoy_admin, 1)

        async def gone() -> str | None:
            return "still healthy to Envoy" if await healthy() is None else None

        supervisor = Supervisor(stack.run.logs)
        environment = service_environment()
        transport.choose(environment)
        await stack.kill_picker()
        await wait_until(gone, "the killed picker", timeout_s=READY_S)
        upstreams = addresses[:UPSTREAMS]
        command = (sys.executable, str(_SCRIPT), "--listen", stack.addresses.picker)
        try:
            await supervisor.start(PICKER, (*command, "--upstreams", *upstreams), environment)
            await wait_until(
                healthy, "the bare picker", timeout_s=READY_S, supervisors=(supervisor,)
            )
            yield BareStack(stack, supervisor)
        finally:
            await supervisor.stop()
