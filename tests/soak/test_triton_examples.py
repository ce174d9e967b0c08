"""Triton's own Python examples, unmodified: at a Triton, and at a listener for operators over two.

They are in ``src/python/examples`` of https://github.com/triton-inference-server/client;
``TIDEGATE_TRITON_EXAMPLES`` is the path of that folder. Their models are in
``support/example_models.py``. ``-rP`` shows how each ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from support import example_models
from support.operators_listener import operators_listener
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.fleet import Tritons

FOLDER = os.environ.get("TIDEGATE_TRITON_EXAMPLES", "")
WITHIN_S = 90.0
ATTRDICT = """
class AttrDict(dict):
    def __getattr__(self, name):
        def made(value):
            if isinstance(value, list):
                return [made(each) for each in value]
            return AttrDict(value) if isinstance(value, dict) else value

        return made(self[name])
"""
"""An example imports the package attrdict, which no Python since 3.10 can."""

pytestmark = [
    pytest.mark.skipif(
        not FOLDER, reason="TIDEGATE_TRITON_EXAMPLES does not name Triton's examples (see above)"
    ),
    pytest.mark.timeout(300),
]


class Example(NamedTuple):
    """One run of an example."""

    file: str
    protocol: str
    options: tuple[str, ...] = ()
    others: bool = False
    """Whether its model is in the second repository."""


IMAGE = ("-m", "inception_graphdef", "-s", "INCEPTION", "image.png")
GRPC = ("-i", "grpc")
PLAIN = (
    Example("grpc_client.py", "grpc"),
    Example("grpc_explicit_byte_content_client.py", "grpc"),
    Example("grpc_explicit_int8_content_client.py", "grpc"),
    Example("grpc_explicit_int_content_client.py", "grpc"),
    Example("grpc_image_client.py", "grpc", IMAGE),
    Example("image_client.py", "http", IMAGE),
    Example("image_client.py", "grpc", (*GRPC, "--streaming", *IMAGE)),
    Example("ensemble_image_client.py", "http", ("image.png",), others=True),
    Example("ensemble_image_client.py", "grpc", (*GRPC, "image.png"), others=True),
    Example("simple_grpc_aio_infer_client.py", "grpc"),
    Example("simple_grpc_aio_sequence_stream_infer_client.py", "grpc"),
    Example("simple_grpc_async_infer_client.py", "grpc"),
    Example("simple_grpc_custom_args_client.py", "grpc"),
    Example("simple_grpc_custom_repeat.py", "grpc", others=True),
    Example("simple_grpc_health_metadata.py", "grpc"),
    Example("simple_grpc_infer_client.py", "grpc"),
    Example("simple_grpc_keepalive_client.py", "grpc"),
    Example("simple_grpc_sequence_stream_infer_client.py", "grpc"),
    Example("simple_grpc_sequence_sync_infer_client.py", "grpc"),
    Example("simple_grpc_string_infer_client.py", "grpc"),
    Example("simple_http_aio_infer_client.py", "http"),
    Example("simple_http_async_infer_client.py", "http"),
    Example("simple_http_health_metadata.py", "http"),
    Example("simple_http_infer_client.py", "http"),
    Example("simple_http_sequence_sync_infer_client.py", "http"),
    Example("simple_http_string_infer_client.py", "http"),
)
MEMORY = (
    Example("reuse_infer_objects_client.py", "http"),
    Example("reuse_infer_objects_client.py", "grpc", GRPC),
    Example("simple_grpc_shm_client.py", "grpc"),
    Example("simple_grpc_shm_string_client.py", "grpc"),
    Example("simple_http_shm_client.py", "http"),
    Example("simple_http_shm_string_client.py", "http"),
)
"""Those that share memory with the server; CUDA's need a GPU."""
GRPC_CONTROL = Example("simple_grpc_model_control.py", "grpc")
HTTP_CONTROL = Example("simple_http_model_control.py", "http")
FIXED = (
    Example("memory_growth_test.py", "http", others=True),
    Example("memory_growth_test.py", "grpc", GRPC, others=True),
)
"""Those that have their address written down."""
FIXED_PORTS = {"http": 8000, "grpc": 8001}
ELSEWHERE = {
    "simple_grpc_cudashm_client.py": "it needs a GPU",
    "simple_http_cudashm_client.py": "it needs a GPU",
}


class Repositories(NamedTuple):
    """Running Tritons of both repositories."""

    eight: Tritons
    others: Tritons


class Server(NamedTuple):
    """Addresses to call, by protocol."""

    eight: dict[str, str]
    others: dict[str, str]


@pytest.fixture(scope="module")
async def repositories(demo_extra, tmp_path_factory):  # noqa: ARG001 - skips first
    """Run two Tritons of each repository."""
    folder = tmp_path_factory.mktemp("models")
    async with AsyncExitStack() as stack:
        started = []
        for name, models in (("eight", example_models.EIGHT), ("others", example_models.OTHERS)):
            names = example_models.write(folder / name, models)
            tritons = Tritons(2, models=names, source=folder / name)
            started.append(await stack.enter_async_context(tritons))
        yield Repositories(*started)


@pytest.fixture(scope="module")
def direct(repositories):
    """Return one Triton of each repository."""
    return Server(
        *({"http": each.replicas[0].http, "grpc": each.replicas[0].grpc} for each in repositories)
    )


@pytest.fixture(scope="module")
async def fleet(repositories, http):
    """Run a fleet of two Tritons for each repository; return their listeners for operators."""
    async with AsyncExitStack() as exit_:
        found = []
        for tritons, models in zip(
            repositories, (example_models.EIGHT, example_models.OTHERS), strict=True
        ):
            endpoints = [
                {"id": one.name, "http": one.http, "grpc": one.grpc} for one in tritons.replicas
            ]
            pool = {"name": "all", "default": True, "endpoints": endpoints}
            pool["match"] = {"models": list(models)}

            def of_one_pool(fleet, pool=pool):
                fleet["pools"] = [pool]

            stack = LocalStack(fleet=of_one_pool, replicas=(), gateway=True)
            await exit_.enter_async_context(stack)
            address = await operators_listener(stack, http)
            found.append({"http": address, "grpc": address})
        yield Server(*found)


@pytest.fixture(params=["direct", "fleet"])
def server(request):
    """Return one Triton of each repository, then the fleets."""
    return request.getfixturevalue(request.param)


def address_of(example, server):
    """Return the address of the server that an example needs."""
    return (server.others if example.others else server.eight)[example.protocol]


@asynccontextmanager
async def led_to(port, address):
    """Let connections to a port of localhost lead to an address."""

    async def pipe(reader, writer) -> None:
        with suppress(OSError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def one(reader, writer) -> None:
        there = await asyncio.open_connection(*address.split(":"))
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    try:
        server = await asyncio.start_server(one, "127.0.0.1", port)
    except OSError as error:
        pytest.skip(f"port {port}: {error}")
    async with server:
        yield


async def run(example, server, folder):
    """Run an example; return its exit code and what it printed."""
    image = folder / "image.png"
    Image.new("RGB", (64, 48), (10, 90, 200)).save(image)
    (folder / "attrdict.py").write_text(ATTRDICT)
    at = () if example in FIXED else ("-u", address_of(example, server))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(FOLDER, example.file)), *at, *example.options),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            printed, _ = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    return process.returncode, printed.decode(errors="replace")


def test_each_example_is_run():
    """One that is new in the folder is missed here."""
    listed = {each.file for each in (*PLAIN, *FIXED, *MEMORY, GRPC_CONTROL, HTTP_CONTROL)}
    assert {each.name for each in Path(FOLDER).glob("*.py")} == listed | ELSEWHERE.keys()


@pytest.mark.parametrize("example", PLAIN, ids=lambda each: f"{each.file} {each.protocol}")
async def test_an_example_ends_well(server, tmp_path, example):
    """At a Triton, so that the models are those that it asks for, and at a fleet."""
    code, printed = await run(example, server, tmp_path)
    assert code == 0, printed


@pytest.mark.parametrize("example", FIXED, ids=lambda each: f"{each.file} {each.protocol}")
async def test_an_example_with_an_address_of_its_own_ends_well(server, tmp_path, example):
    """The ports that are written down in it lead to a Triton, and to a fleet."""
    async with led_to(FIXED_PORTS[example.protocol], address_of(example, server)):
        code, printed = await run(example, server, tmp_path)
    assert code == 0, printed


@pytest.mark.parametrize("example", MEMORY, ids=lambda each: f"{each.file} {each.protocol}")
async def test_shared_memory_is_refused_with_the_reason(direct, fleet, tmp_path, example):
    """The memory is that of one host and replica."""
    code, printed = await run(example, direct, tmp_path)
    assert code == 0, printed
    code, printed = await run(example, fleet, tmp_path)
    assert code != 0
    assert "shared memory is that of one host and replica" in printed


async def test_models_are_controlled_over_grpc(fleet, tmp_path):
    """Also where the newest example tries a path that ends Triton 2.51."""
    code, printed = await run(GRPC_CONTROL, fleet, tmp_path)
    assert code == 0, printed
    assert "PASS: model control" in printed


async def test_models_are_controlled_over_http(repositories, direct, fleet, http, tmp_path):
    """This example counts on a repository without the model of 8-bit integers."""
    gone = "simple_int8"
    for replica in repositories.eight.replicas:
        async with http.post(f"{replica.http_url}/v2/repository/models/{gone}/unload") as answer:
            assert answer.status == 200
        shutil.rmtree(repositories.eight.run.path / "repositories" / replica.name / gone)
    for server in (direct, fleet):
        code, printed = await run(HTTP_CONTROL, server, tmp_path)
        assert code == 0, printed
        assert "PASS: model control" in printed
