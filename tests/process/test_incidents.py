"""Incidents of control server and picker: status, log, metric and runbook say what it is, and soon.

The short form, without Envoy and Prometheus; `make test-rules` has all incidents, under traffic.
"""

from __future__ import annotations

import resource

import aiohttp
import grpc
import pytest

from support.incidents import (
    Pair,
    Told,
    Witness,
    aging,
    certificates_told,
    control_and_picker,
    reason,
    status_of,
    stopped,
    zero,
)
from tidegate.stack.local import CONTROL_SERVER, PICKER
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc

pytestmark = pytest.mark.timeout(120)

PATIENT_S = 45.0
"""Bound of what is said within 10 s where the machine is not busy with other tests."""


@pytest.fixture(scope="module")
async def pair():
    """Run a control server and a picker for all tests without certificates."""
    async with control_and_picker() as running:
        yield running


def witness(http: aiohttp.ClientSession, pair: Pair, *, whole_logs: bool = False) -> Witness:
    """Return what looks at all that the pair says."""
    return Witness(http, pair.pages, pair.logs, status_of(pair.admin), whole_logs=whole_logs)


async def test_a_full_disk(http, pair: Pair) -> None:
    """A drain is taken, and that it is not stored is said everywhere."""
    seen = witness(http, pair)
    pid = pair.supervisor.pid(CONTROL_SERVER)
    size = max(path.stat().st_size for path in pair.state.iterdir())
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    async with grpc.aio.insecure_channel(pair.admin) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        await stub.SetDropOverload(api.SetDropOverloadRequest(pool="llm", percent=1))
        await seen.told(
            Told(
                "revisions cannot be stored",
                ("store_not_writable", ""),
                ("control", "tidegate_xds_store_writable", zero),
                ("TidegateStoreNotWritable", {}),
            ),
            PATIENT_S,
        )
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, endless)


async def test_a_hung_control_server(http, pair: Pair) -> None:
    """It takes connections and answers nothing."""
    seen = witness(http, pair)
    with stopped(pair.supervisor.pid(CONTROL_SERVER)):
        await seen.told(
            Told(
                "did not answer in time; it may be stopped",
                ("control_server_lost", ""),
                ("picker", "tidegate_picker_xds_connected", zero),
                ("TidegateControlServerLost", {}),
            ),
            PATIENT_S,
        )


async def test_a_dead_picker(http, pair: Pair) -> None:
    """Killed; the last one."""
    # One that came late was missed at first, and no reason is logged twice in a minute.
    seen = witness(http, pair, whole_logs=True)
    await pair.supervisor.kill(PICKER)
    await seen.told(
        Told(
            "no picker is connected",
            ("status_reason", "picker-missing"),
            reason("picker-missing"),
            ("TidegatePickerMissing", {}),
        ),
        PATIENT_S,
    )


async def test_a_certificate_that_ends_soon(tmp_path) -> None:
    """The server's own and the picker's, of each a tenth of its life is left."""
    async with aging(tmp_path) as (pair, seen, _):
        for what in certificates_told(pair):
            await seen.told(what, PATIENT_S)
