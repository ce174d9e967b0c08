"""Triton's own load generator: through Envoy to one replica, and over several with a gateway.

`perf_analyzer` is in the wheel of tritonclient 2.51; `TIDEGATE_PERF_ANALYZER` is its path.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
from contextlib import suppress

import pytest

from tidegate.stack.tritons.replica import find_triton

BINARY = os.environ.get("TIDEGATE_PERF_ANALYZER", "")
LIBRARIES = ("libb64.so.0d", "libcudart.so.12")
"""Libraries that the binary needs and that are in Triton's wheel, under names with a hash."""
PROMPTS = {"data": [{"text_input": ["tides"], "max_tokens": [4], "stream": [True]}]}
WITHIN_S = 60.0

pytestmark = pytest.mark.skipif(
    not BINARY, reason="TIDEGATE_PERF_ANALYZER does not name perf_analyzer (see CONTRIBUTING.md)"
)


@pytest.fixture(scope="module")
async def gateway(new_module_stack, tritons):
    """Start a gateway over one Triton; return its address."""

    def one_replica(fleet):
        for pool in fleet["pools"]:
            pool["endpoints"] = pool["endpoints"][:1]
            pool["variants"] = pool["variants"][:1]

    del tritons
    stack = await new_module_stack(fleet=one_replica)
    return stack.http_address


@pytest.fixture(scope="module")
async def fleet(new_module_stack):
    """Start a gateway over several Tritons; return the address of Envoy."""

    def of_one_version(fleet):
        # The load generator takes the newest version that metadata list.
        for pool in fleet["pools"]:
            pool["variants"] = pool["variants"][:1]
            pool["endpoints"] = [
                {**one, "variant": pool["variants"][0]["name"]}
                for one in pool["endpoints"]
                if one["variant"] == pool["variants"][0]["name"]
            ]

    stack = await new_module_stack(fleet=of_one_version, gateway=True)
    return stack.http_address


@pytest.fixture
def libraries(tmp_path):
    """Give the libraries of Triton's wheel the names that the binary asks for."""
    for name in LIBRARIES:
        stem, _, version = name.partition(".")
        major = version.rpartition(".")[2]
        (found,) = find_triton().libraries.glob(f"{stem}-*.so.{major}*")
        (tmp_path / name).symlink_to(found)
    return tmp_path


@pytest.mark.parametrize(
    "options",
    [
        ("-m", "vision", "-i", "http"),
        ("-m", "vision", "-i", "http", "--async", "-b", "4"),
        ("-m", "vision", "-i", "http", "--input-tensor-format", "json"),
        ("-m", "vision", "-i", "grpc"),
        ("-m", "vision", "-i", "grpc", "--async"),
        ("-m", "vision", "-i", "grpc", "--grpc-compression-algorithm", "gzip"),
        ("-m", "counter", "-i", "grpc", "--streaming", "--sequence-length", "5"),
        ("-m", "counter", "-i", "http", "--async", "--sequence-length", "5"),
        ("-m", "toy-llm", "-i", "grpc", "--streaming", "--async", "--input-data", "prompts.json"),
    ],
    ids=" ".join,
)
async def test_perf_analyzer_measures(gateway, libraries, options):
    """It reads metadata, configuration and statistics, and none of its requests fails."""
    await measure(gateway, libraries, options, window_ms=1000)


SHORT = (
    ("-m", "vision", "-i", "http"),
    ("-m", "vision", "-i", "grpc", "--async"),
    ("-m", "counter", "-i", "grpc", "--streaming", "--sequence-length", "5"),
    ("-m", "toy-llm", "-i", "grpc", "--streaming", "--async", "--input-data", "prompts.json"),
)


@pytest.mark.parametrize("turn", range(int(os.environ.get("TIDEGATE_PERF_TURNS", "1"))))
@pytest.mark.parametrize("options", SHORT, ids=" ".join)
async def test_short_windows_over_several_replicas(fleet, libraries, options, turn):
    """Statistics at its start and at its end are sums of the same replicas."""
    del turn
    await measure(fleet, libraries, options, window_ms=500)


async def measure(address, libraries, options, window_ms):
    """Run the load generator until it is done."""
    report = libraries / "report.csv"
    (libraries / "prompts.json").write_text(json.dumps(PROMPTS))
    window = ("-p", str(window_ms))
    given = ("-u", address, *window, "-s", "90", "-r", "4", "--concurrency-range", "2")
    process = await asyncio.create_subprocess_exec(
        BINARY,
        *options,
        *given,
        *("-f", str(report)),
        cwd=libraries,
        env={**os.environ, "LD_LIBRARY_PATH": str(libraries)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            printed, _ = await process.communicate()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, printed.decode()
    (row,) = csv.DictReader(report.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
