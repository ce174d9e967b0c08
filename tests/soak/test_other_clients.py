"""Clients in other languages, and KServe's: each asks a fleet of two Tritons as it asks one.

A variable names what is installed for each; without it the test is skipped:

* ``TIDEGATE_TRITON_JAVA``: ``SimpleInferClient.jar``, which ``mvn package`` makes in ``src/java``
  of https://github.com/triton-inference-server/client; needs Java 11 or newer.
* ``TIDEGATE_NODE_MODULES``: the folder of ``npm install @grpc/grpc-js @grpc/proto-loader``.
* ``TIDEGATE_KSERVE_PYTHON``: a Python into which ``pip install kserve`` was run.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from support import example_models
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.fleet import Tritons

HERE = Path(example_models.__file__).with_name("other_clients")
JAVA, NODE, KSERVE = (
    os.environ.get(f"TIDEGATE_{name}", "")
    for name in ("TRITON_JAVA", "NODE_MODULES", "KSERVE_PYTHON")
)
COMMANDS = {
    "java": (JAVA, ("java", "-cp", JAVA, str(HERE / "Ask.java")), ()),
    "node": (NODE, ("node", str(HERE / "ask.js")), (str(HERE / "service.proto"),)),
    "kserve": (KSERVE, (KSERVE, str(HERE / "ask_kserve.py")), ()),
}
"""What is installed, the command before the address, and that behind it."""
WITHIN_S = 120.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def asking(request):
    """Return a client and its command, if what it needs is there."""
    installed, before, behind = COMMANDS[request.param]
    if not installed:
        pytest.skip(f"what {request.param} needs is not named (see above)")
    return request.param, before, behind


@pytest.fixture(scope="module")
async def addresses(demo_extra, tmp_path_factory):  # noqa: ARG001 - skips first
    """Run two Tritons and a fleet over them; return the addresses of one and of the fleet."""
    source = tmp_path_factory.mktemp("models")
    models = example_models.write(source, {"simple": example_models.EIGHT["simple"]})
    async with Tritons(2, models=models, source=source) as tritons:
        endpoints = [
            {"id": one.name, "http": one.http, "grpc": one.grpc} for one in tritons.replicas
        ]

        def of_one_pool(fleet):
            match = {"models": list(models)}
            fleet["pools"] = [
                {"name": "all", "default": True, "match": match, "endpoints": endpoints}
            ]

        async with LocalStack(fleet=of_one_pool, replicas=(), gateway=True) as stack:
            one = tritons.replicas[0]
            yield {"triton": (one.http, one.grpc), "fleet": (stack.http_address,) * 2}


@pytest.mark.parametrize("at", ["triton", "fleet"])
@pytest.mark.parametrize("asking", COMMANDS, indirect=True)
async def test_a_client_of_another_language_is_answered(asking, at, addresses):
    """KServe's takes one address for REST and gRPC, which a Triton alone does not have."""
    client, before, behind = asking
    if (client, at) == ("kserve", "triton"):
        pytest.skip("a Triton has an address for each protocol")
    http, grpc = addresses[at]
    process = await asyncio.create_subprocess_exec(
        *before,
        grpc if client == "node" else http,
        *behind,
        env={**os.environ, "NODE_PATH": NODE},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            printed, _ = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert (process.returncode, "PASS" in printed.decode()) == (0, True), printed.decode()
