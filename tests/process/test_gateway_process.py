"""The process of a gateway, with a control server and without Envoys and Tritons."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from functools import partial

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from support.control_process import piped, served
from support.fleets import endpoint, pool
from support.traffic import eventually
from tidegate_common.children import module_command

PORTS = ("http", "grpc", "admin", "admin-grpc", "metrics")


class GatewayProcess:
    """A gateway in a process of its own."""

    def __init__(self, process, lines) -> None:
        self.process, self.lines = process, lines
        self.events = []

    async def event(self, name):
        """Return the next event of this name in the log."""
        async with asyncio.timeout(60):
            async for line in self.lines:
                with contextlib.suppress(ValueError):
                    self.events.append(json.loads(line))
                    if self.events[-1]["event"] == name:
                        return self.events[-1]
        raise AssertionError(self.events)


@contextlib.asynccontextmanager
async def gateway(ads, **options):
    """Run a gateway on free ports; kill it at the end."""
    given = {**dict.fromkeys(PORTS, "127.0.0.1:0"), "xds": ads, "id": "g", "log-format": "json"}
    given.update(options)
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    process, lines = await piped(module_command("gateway", *words))
    try:
        yield GatewayProcess(process, lines)
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await lines.read()  # to its end, which closes the pipe


@pytest.fixture
async def control(tmp_path):
    """Run a control server over a fleet of replicas that are not there."""
    file = tmp_path / "fleet.yaml"
    nobody = [endpoint(number, http=f"127.0.0.1:{number}", grpc=None) for number in (1, 2)]
    made = pool(default=True, endpoints=nobody, variants=[{"name": "stable"}])
    file.write_text(yaml.safe_dump({"pools": [made]}))
    async with served(file, tmp_path / "state") as running:
        yield running


async def test_it_serves_once_it_knows_the_pools_and_stops_on_sigterm(control):
    """All its replicas are away, which it says; its metrics count the call."""
    async with gateway(control.ads) as running, aiohttp.ClientSession() as http:
        started = await running.event("gateway_started")
        async with http.get(f"http://{started['http']}/v2/models/stats") as answer:
            assert answer.status == 503
            assert answer.headers["x-tidegate-replicas"] == "0/2; r1=unreachable, r2=unreachable"
        async with http.get(f"http://{started['http']}/v2/health/ready") as answer:
            assert (answer.status, answer.headers["x-tidegate-replicas"]) == (400, "0/2; llm=0/2")
        async with http.get(f"http://{started['metrics']}/metrics") as answer:
            page = await answer.text()
        assert 'tidegate_gateway_calls_total{outcome="error",protocol="http"} 2.0' in page
        assert "tidegate_gateway_control_connected 1.0" in page
        status = await control.status()
        assert [(each.node, each.kind) for each in status.clients] == [("g", "gateway")]
        assert await eventually(lambda: drained(control))
        os.kill(running.process.pid, signal.SIGTERM)
        await running.event("gateway_stopped")
        assert await asyncio.wait_for(running.process.wait(), 30) == 0


async def drained(control):
    """Return whether a drain is over: no client is waited for."""
    await control.drain("r1")
    return (await control.status()).settled


async def test_a_question_in_flight_is_answered_after_sigterm(tmp_path):
    """On each of its ports, though its replica takes longer; new questions are refused."""
    asked, gate = asyncio.Queue(), asyncio.Event()

    async def answer(_):
        asked.put_nowait(None)
        await gate.wait()
        return web.json_response({"name": "slow", "version": "1", "extensions": []})

    async def ask(http, address):
        async with http.get(f"http://{address}/v2") as told:
            return told.status, (await told.json())["name"]

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as replica:
        one = endpoint(1, http=f"127.0.0.1:{replica.port}", grpc=None)
        made = pool(default=True, endpoints=[one], variants=[{"name": "stable"}])
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump({"pools": [made]}))
        async with (
            served(file, tmp_path / "state") as control,
            gateway(control.ads, timeout="60", drain="60") as running,
            aiohttp.ClientSession() as http,
        ):
            started = await running.event("gateway_started")
            ports = [started["http"], started["admin"]]
            questions = [asyncio.create_task(ask(http, each)) for each in ports]
            for _ in questions:
                await asyncio.wait_for(asked.get(), 60)
            os.kill(running.process.pid, signal.SIGTERM)
            for each in ports:
                assert await eventually(partial(refused, each))
            await asyncio.sleep(2.5)  # what is not given --drain has ended by then
            gate.set()
            for each in questions:
                status, name = await each
                assert status == 200
                assert name
            await running.event("gateway_stopped")
            assert await asyncio.wait_for(running.process.wait(), 30) == 0


async def refused(address):
    """Return whether nothing listens at an address."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return True
    writer.close()
    return False


async def test_without_a_control_server_it_waits():
    """It has nothing to answer with: its page says so, and it can be stopped."""
    async with gateway("127.0.0.1:1", metrics="127.0.0.1:0") as running:
        lost = await running.event("control_server_lost")
        assert lost["retry_in_s"] > 0
        os.kill(running.process.pid, signal.SIGTERM)
        assert await asyncio.wait_for(running.process.wait(), 30) == 0


async def test_a_port_that_is_taken_ends_the_start_with_the_option(control):
    """An operator knows what to change."""
    async with gateway(control.ads) as one:
        address = (await one.event("gateway_started"))["admin_grpc"]
        async with gateway(control.ads, **{"admin-grpc": address, "id": "other"}) as two:
            fault = await two.event("cannot_start")
            assert "--admin-grpc" in fault["reason"]
            assert await asyncio.wait_for(two.process.wait(), 30) == 2
