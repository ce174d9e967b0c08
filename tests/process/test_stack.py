"""The local stack: readiness, kills and restarts, and cleanup."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

import pytest

from support.traffic import eventually, metric
from tidegate.stack.local import ENVOY, LocalStack
from tidegate.stack.processes.supervisor import CrashError
from tidegate.stack.processes.waiting import StackError

pytestmark = pytest.mark.timeout(120)


async def ask(http, stack, model_path="toy-llm/generate") -> int:
    """Send a request to the language model through Envoy; return the status."""
    body = {"text_input": "hello", "max_tokens": 1}
    async with http.post(f"{stack.http_url}/v2/models/{model_path}", json=body) as answer:
        await answer.read()
        return answer.status


@pytest.fixture(scope="module")
async def stack(new_module_stack):
    """Run a stack whose replicas are killed."""
    return await new_module_stack()


async def test_two_stacks_run_side_by_side(http, new_stack):
    """Each serves from its first request on, over its protocol; they share no port or name."""
    one = await new_stack(protocol="delta")
    assert [await ask(http, one) for _ in range(20)] == [200] * 20
    two = await new_stack(protocol="sotw")
    assert [await ask(http, two) for _ in range(20)] == [200] * 20
    assert one.http_address != two.http_address
    assert [await ask(http, stack) for stack in (one, two)] == [200, 200]


async def test_a_change_of_the_fleet_reaches_the_fleet_file(new_stack):
    """The option ``fleet`` changes the fleet file."""
    stack = await new_stack(
        models=("vision",), fleet={"pools": {"vision": {"routing": {"fallbacks": 0}}}}
    )
    (pool,) = stack.read_fleet()["pools"]
    assert (pool["name"], pool["routing"]["fallbacks"]) == ("vision", 0)


async def test_the_picker_can_be_killed_and_started(http, stack):
    """Envoy continues without the picker and uses it again after its restart."""
    await stack.kill_picker()
    assert await ask(http, stack) == 200
    await stack.start_picker()
    assert await ask(http, stack) == 200


async def test_the_control_server_can_be_killed_and_started(http, stack):
    """The configuration stays the same without the control server and after its restart.

    The picker's gauge says at once whether it is connected, without a change of the fleet.
    """

    async def says(value) -> bool:
        page = stack.picker_metrics
        return await metric(http, page, "tidegate_picker_xds_connected") == value

    assert await eventually(partial(says, 1))
    await stack.kill_control_server()
    assert await eventually(partial(says, 0))
    assert await ask(http, stack) == 200
    await stack.start_control_server()
    assert await eventually(partial(says, 1))
    assert await ask(http, stack) == 200


async def test_a_killed_replica_comes_back(http, stack):
    """Other replicas serve requests in the meantime."""
    await stack.kill_replica("r1")
    try:
        assert await ask(http, stack) == 200
    finally:
        await stack.restart_replica("r1")
    assert await ask(http, stack) == 200


async def test_a_crash_is_reported_with_its_log(new_stack):
    """A crashed process is reported; a process that the stack killed is not."""
    stack = await new_stack()
    await stack.kill_picker()
    os.kill(stack._supervisor.pid(ENVOY), signal.SIGKILL)
    async with asyncio.timeout(60):
        crash = await stack.crashed()
    assert (crash.name, crash.code) == (ENVOY, -signal.SIGKILL)
    assert crash.log.parent == stack.run.logs


async def test_a_bad_fleet_ends_the_start_with_its_reason(new_stack):
    """The control server's error reaches the caller, and no timeout does."""
    with pytest.raises((CrashError, StackError), match="canari") as error:
        await new_stack(fleet={"pools": {"llm": {"variants": [{"name": "canari"}]}}})
    assert "not ready after" not in str(error.value)


async def test_nothing_stays_when_a_stack_has_ended(tritons):
    """After its end, all its processes are gone, given replicas run, and its logs exist."""
    async with LocalStack(tritons=tritons) as stack:
        pids = [stack._supervisor.pid(name) for name in ("control-server", "picker", ENVOY)]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert all(tritons.supervisor.running(replica.name) for replica in tritons.replicas)
    assert sorted(path.name for path in stack.run.logs.iterdir()) == [
        "control-server.log",
        "envoy.log",
        "picker.log",
    ]


async def test_an_unknown_model_is_refused():
    """The error names the available models."""
    with pytest.raises(ValueError, match="choose some of toy-llm, vision, counter"):
        LocalStack(models=("gpt",))
