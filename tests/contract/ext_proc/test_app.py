"""A whole picker in its own process or loop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, pre_tokenizers

from ext_proc.app import Picker
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.run import run_picker
from ext_proc.settings import EXIT_USAGE, PickerSettings
from ext_proc.workers.bus import WorkerPlace
from tidegate_common import logs

CLOSED_PORT = "127.0.0.1:1"


def settings(**changes):
    values = {
        "listen": "127.0.0.1:0",
        "metrics": "127.0.0.1:0",
        "xds": CLOSED_PORT,
        "id": "picker-1",
    }
    return PickerSettings.model_validate({**values, **changes})


async def started(*changes):
    """Start a picker process; return it with its log's first line (gRPC may write others)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "ext_proc", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
        *("--xds", CLOSED_PORT, "--id", "picker-1", "--log-format", "json", *changes),
        stderr=asyncio.subprocess.PIPE,
    )
    while (line := await process.stderr.readline()) and not line.startswith(b"{"):
        pass
    return process, json.loads(line)


async def test_starts_shows_itself_and_stops_on_sigterm():
    """Without a control server it serves, is not ready, shows this, and ends with 0 on a signal."""
    async with asyncio.timeout(60):
        process, line = await started()
        assert line["event"] == "picker_started"
        async with aiohttp.ClientSession() as session:
            page = f"http://{line['metrics']}"
            async with session.get(f"{page}/healthz") as answer:
                assert answer.status == 503
            async with session.get(f"{page}/debug/state") as answer:
                state = await answer.json()
            async with session.get(f"{page}/metrics") as answer:
                assert "tidegate_picker_xds_connected 0.0" in await answer.text()
        assert (state["picker"], state["ready"]) == ("picker-1", False)
        assert state["fleet"]["synced"] is False
        async with grpc.aio.insecure_channel(line["listen"]) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="liveness")
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
        process.send_signal(signal.SIGTERM)
        await process.stderr.read()
        assert await process.wait() == 0


async def test_a_worker_whose_parent_has_ended_drains_without_being_woken(tmp_path, monkeypatch):
    """The end of its standard input would wake its event loop for as long as streams drain."""
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader) as ended:
        monkeypatch.setattr(sys, "stdin", ended)
        picker, loop = Picker(settings(), WorkerPlace(tmp_path, 0, 2)), asyncio.get_running_loop()
        picker._heed(loop)
        try:
            await picker._stop.wait()
            assert not loop.remove_reader(reader)
        finally:
            picker._heed_no_more(loop)


@pytest.mark.parametrize("option", ["listen", "metrics"])
async def test_a_taken_port_ends_with_2(option, capsys):
    """One clear line names the address; nothing is left running."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        code = await run_picker(settings(**{option: f"{host}:{port}"}))
    finally:
        server.close()
        await server.wait_closed()
    assert code == EXIT_USAGE
    assert f"cannot listen on {host}:{port}" in capsys.readouterr().err


async def test_pools_reach_router_and_telemetry():
    """The control server's pools determine where requests go and whose pages are read."""
    replica = Endpoint(
        EndpointKey("r1", 1), "stable", "127.0.0.1:1", None, "http://127.0.0.1:1/metrics"
    )
    silent = Endpoint(EndpointKey("r2", 1), "stable", "127.0.0.1:2", None)
    pool = Pool("llm", variants=(Variant("stable", 1),), endpoints=(replica, silent))
    picker = Picker(settings())
    picker._take({"llm": pool})
    assert set(picker._router.pools) == {"llm"}
    assert set(picker._telemetry.state()["pages"]) == {"r1"}


async def test_a_pools_tokenizer_reaches_its_prompts(tmp_path):
    """The file that a pool names is read, and blocks of its prompts consist of tokens."""
    file = tmp_path / "tokenizer.json"
    words = HuggingFace(models.WordLevel({"low": 0, "tide": 1}, "low"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(file))
    picker = Picker(settings())
    reading = asyncio.create_task(picker._tokenizers.run())
    try:
        picker._take({"llm": Pool("llm", tokenizer=str(file))})
        async with asyncio.timeout(60):
            while not picker._server._tools.options.tokenizers:  # noqa: ASYNC110 - a thread reads it
                await asyncio.sleep(0)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert picker._server._tools.options.tokenizers[str(file)].encode("low tide") == [0, 1]


async def test_a_part_that_ends_is_a_crash(monkeypatch):
    """The picker does not continue without one of its parts: it stops with exit code 1."""
    async with Picker(settings(drain=0)) as picker:

        async def crash():
            raise RuntimeError("gone")

        monkeypatch.setattr(picker._telemetry, "run", crash)
        assert await picker.until_stopped() == 1


async def test_spans_without_the_extra_are_one_clear_error(monkeypatch, capsys):
    """The error names the extra to install; nothing is started."""
    monkeypatch.setitem(sys.modules, "ext_proc.observability.tracing", None)
    assert await run_picker(settings(otlp="127.0.0.1:4317")) == EXIT_USAGE
    output = capsys.readouterr()
    assert "pip install 'tidegate[otel]'" in output.out + output.err


@pytest.mark.parametrize("transport", ["grpc", "nghttp2"])
async def test_it_says_over_what_it_serves(transport, capsys):
    """The start's log line and the state page name the transport, also for `auto`."""
    logs.configure("json", "info")
    async with Picker(settings(transport=transport)) as picker:
        assert picker._state()["transport"] == transport
        assert type(picker._server._server).__module__.startswith(
            "ext_proc.server.growing" if transport == "grpc" else "ext_proc.server.h2"
        )
    output = capsys.readouterr()
    assert f'"transport": "{transport}"' in output.out + output.err


async def test_a_transport_without_its_extra_is_one_clear_error(monkeypatch, capsys):
    """The error names the extra to install; nothing is started."""
    monkeypatch.setitem(sys.modules, "ngh2", None)
    assert await run_picker(settings(transport="nghttp2")) == EXIT_USAGE
    output = capsys.readouterr()
    assert "pip install 'tidegate[fast]'" in output.out + output.err
