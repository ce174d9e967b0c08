"""Polling of probes."""

import os

import aiohttp
import pytest
from aiohttp import web

from tidegate.stack.processes.supervisor import CrashError, Supervisor
from tidegate.stack.processes.waiting import StackError, http_ok, wait_until


async def test_it_returns_when_nothing_is_missing():
    """Polling ends when the probe returns ``None``."""
    answers = iter(["a", "b", None])

    async def look():
        return next(answers)

    await wait_until(look, "it", timeout_s=5)
    assert next(answers, "used up") == "used up"


async def test_a_timeout_says_what_was_missing():
    """The error contains the name and the last result of the probe."""

    async def look():
        return "no picker is connected"

    with pytest.raises(StackError, match="the stack not ready after 0 s: no picker is connected"):
        await wait_until(look, "the stack", timeout_s=0)


async def test_a_crash_ends_the_wait(tmp_path):
    """A crash of a child ends the wait before the timeout."""
    supervisor = Supervisor(tmp_path)
    await supervisor.start("one", ("/bin/false",), dict(os.environ))

    async def look():
        return "nothing yet"

    with pytest.raises(CrashError, match="one exited with 1"):
        await wait_until(look, "it", timeout_s=60, supervisors=(supervisor,))
    await supervisor.stop()


@pytest.fixture
async def server():
    """Return the URL of a server that returns the status in its path."""

    async def answer(request):
        return web.Response(status=int(request.match_info["status"]))

    application = web.Application()
    application.router.add_get("/{status}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_http_200_is_ready(server):
    """Status 200 returns ``None``."""
    async with aiohttp.ClientSession() as session:
        assert await http_ok(session, f"{server}/200") is None


async def test_any_other_status_is_not_ready(server):
    """Another status is returned as the reason; Triton returns 400 while a model is not ready."""
    async with aiohttp.ClientSession() as session:
        assert await http_ok(session, f"{server}/400") == f"{server}/400 answers 400"


async def test_a_refused_connection_is_not_ready():
    """A refused connection is returned as the reason and does not raise."""
    async with aiohttp.ClientSession() as session:
        missing = await http_ok(session, "http://127.0.0.1:1/")
    assert missing is not None
    assert missing.startswith("http://127.0.0.1:1/: ")
