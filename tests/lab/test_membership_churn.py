"""Membership that changes all the time fails no request, whatever its sources say meanwhile."""

from __future__ import annotations

import os
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.churn import LEAST, Churn, run_events
from support.churn_sources import FileDriver, NamesDriver
from support.churn_stack import ChurnStack, Load
from support.names import NameServer
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary
from tidegate.stack.processes.ports import HeldPorts

try:
    envoy_binary()
except ExtraMissingError as missing:
    pytest.skip(str(missing), allow_module_level=True)

FEW = 20
EVENTS = int(os.environ.get("TIDEGATE_CHURN_EVENTS", FEW))
"""Events of each test; 1,000 take about three minutes on two cores."""
KINDS = ["file and dns"] if EVENTS == FEW else ["file", "dns", "file and dns"]
"""Sources; both at once are enough where there are few events."""
SEED = int(os.environ.get("TIDEGATE_CHURN_SEED", "17"))

pytestmark = pytest.mark.timeout(240 + EVENTS)


@pytest.mark.parametrize("sources", KINDS)
async def test_no_request_fails_while_membership_changes(sources: str, tmp_path: Path) -> None:
    """But those that a replica had when it died; first each source lists others altogether.

    In the end all have what the sources list.
    """
    rng = random.Random(SEED)
    async with AsyncExitStack() as exit_:
        ports = exit_.enter_context(HeldPorts())
        server = await exit_.enter_async_context(NameServer())
        drivers = []
        if "file" in sources:
            drivers.append(FileDriver(tmp_path / "replicas.yaml", ports))
        if "dns" in sources:
            drivers.append(NamesDriver(server, ports.take()))
        for driver in drivers:
            for number in range(LEAST + 2):
                replica = await driver.make(number, rng)
                driver.listed[replica.name] = replica
                await replica.start()
            await driver.mend()
        dns = "{}:{}".format(*server.address)
        stack = await exit_.enter_async_context(ChurnStack(drivers, dns, tmp_path / "state"))
        load = await exit_.enter_async_context(Load(stack.http_url))
        churn = await exit_.enter_async_context(Churn(stack, drivers, rng))
        for driver in drivers:
            await churn.replace(driver)
        await run_events(churn, stack, EVENTS, lambda: rng.choice([0.01, 0.05, 0.1, 0.5]))
        await churn.settle()
        churn.write_figures(sources, load)
        assert not churn.unexplained(load)
        assert not churn.faults
        assert load.answered > EVENTS
