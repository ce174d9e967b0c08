"""A release installed by a real Helm, and a control server with its fleet, rights and token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kubernetes.chart import CHART, helm
from kubernetes.test_manifests import admitted, restricted
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import wait_until
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kubernetes.cluster import Cluster

pytestmark = pytest.mark.timeout(300)
WAIT_S = 60.0
SPACE = "installed"


def fleet_writer(stateful: dict[str, Any], given: Path, made: Path, address: str) -> None:
    """Run the script of the container that writes the fleet file, until it has written it.

    Args:
        stateful: The control server's StatefulSet.
        given: Folder in place of the ConfigMap's.
        made: Folder in place of the volume.
        address: What DNS answers for the picker's Service.
    """
    container = stateful["spec"]["template"]["spec"]["initContainers"][0]
    programs = given.parent / "programs"
    programs.mkdir()
    getent = programs / "getent"
    getent.write_text(f'#!/bin/sh\ntest "$2" = tidegate-picker && echo "{address} STREAM"\n')
    getent.chmod(0o700)
    (script,) = container["args"]
    for place, folder in (("/given", given), ("/etc/tidegate", made)):
        script = script.replace(place, str(folder))
    variables = {each["name"]: each["value"] for each in container["env"]}
    path = f"{programs}:{os.environ['PATH']}"
    process = subprocess.Popen([*container["command"], script], env={**variables, "PATH": path})
    check = [str(made / "fleet.yaml") if "/" in each else each for each in
             container["startupProbe"]["exec"]["command"]]  # fmt: skip
    try:
        while subprocess.run(check, check=False).returncode:
            assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(WAIT_S) == 0


async def told(server: str, *words: str) -> Any:
    """Return what a verb of the command line prints, as JSON."""
    command = module_command("tidegate", *words, "--server", server, "-o", "json")
    asked = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, trouble = await asked.communicate()
    return json.loads(said) if said else trouble.decode()


async def test_a_release_is_installed_found_and_upgraded(cluster: Cluster, tmp_path: Path) -> None:
    """Its fleet finds its own example replicas, by the rights of its own account."""
    await restricted(cluster, SPACE)
    access = ("--namespace", SPACE, "--kubeconfig", str(cluster.folder / "kubeconfig"))

    async def release(verb: str, *options: str) -> str:
        return await asyncio.to_thread(
            helm,
            verb,
            "tidegate",
            *(() if verb == "uninstall" else (str(CHART),)),
            *access,
            *options,
        )

    pool = {
        "name": "llm",
        "default": True,
        "match": {"models": ["llama-3-8b"]},
        "membership": {"admit": "found", "drain": "1s"},
        "endpoints_from": [{"kubernetes": {"selector": {"app": "triton"}}, "metrics_port": 8002}],
    }
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"fleet": {"pools": [pool]}, "triton": {"enabled": True}}))
    notes = await release("install", "--values", str(values))
    for role in ("control", "picker", "admin", "envoy", "gateway", "reporter"):
        assert f"tidegate-{role}" in notes.partition("Secrets that must be there")[2]
    await admitted(cluster, SPACE, 6)
    given, made = tmp_path / "given", tmp_path / "made"
    given.mkdir()
    made.mkdir()
    root = f"/api/v1/namespaces/{SPACE}"
    stored = await cluster.ask("GET", f"{root}/configmaps/tidegate-fleet")
    (given / "fleet.yaml").write_text(stored["data"]["fleet.yaml"])
    service = await cluster.ask("GET", f"{root}/services/tidegate-picker")
    stateful = await cluster.ask(
        "GET", f"/apis/apps/v1/namespaces/{SPACE}/statefulsets/tidegate-control"
    )
    await asyncio.to_thread(fleet_writer, stateful, given, made, service["spec"]["clusterIP"])
    fleet = yaml.safe_load((made / "fleet.yaml").read_text())
    assert fleet["pickers"]["addresses"] == [
        f"{service['spec']['clusterIP']}:{port}" for port in (18001, 18002)
    ]
    token = tmp_path / "token"
    token.write_text(await cluster.token(SPACE, "tidegate-control"))
    fleet["pools"][0]["endpoints_from"][0]["kubernetes"]["api"] = {
        "url": cluster.url,
        "token_file": str(token),
        "ca_file": str(cluster.ca),
    }
    (made / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    async with contextlib.AsyncExitStack() as exit_:
        ports = exit_.enter_context(HeldPorts())
        ads, admin, pages = (ports.address() for _ in range(3))
        supervisor = Supervisor(tmp_path)
        exit_.push_async_callback(supervisor.stop)
        options = (f"--fleet={made / 'fleet.yaml'}", f"--ads={ads}", f"--admin={admin}")
        command = module_command("tidegate", "xds", *options, f"--metrics={pages}")
        await supervisor.start("control", command, service_environment())
        for replicas, upgrade in ((2, False), (3, True)):
            wanted = [f"tidegate-triton-stable-{number}" for number in range(replicas)]
            if upgrade:
                changed = f"triton.variants[0].replicas={replicas}"
                named = "triton.variants[0].name=stable,triton.variants[0].device=a100"
                await release("upgrade", "--values", str(values), "--set", f"{named},{changed}")
            await found(admin, wanted, supervisor)
        status = await told(admin, "status")
        assert "llm" in json.dumps(status["pools"])
    await release("uninstall")
    await cluster.ask("DELETE", f"/api/v1/namespaces/{SPACE}")


async def found(server: str, wanted: Sequence[str], supervisor: Supervisor) -> None:
    """Wait until the control server has these replicas and no others."""

    async def look() -> str | None:
        said = await told(server, "get", "endpoints")
        rows = said if isinstance(said, list) else []
        ids = sorted(str(each.get("endpoint", each.get("id"))) for each in rows)
        log = supervisor.log("control").read_text()[-1500:]
        return None if ids == sorted(wanted) else f"it has {said}; {log}"

    await wait_until(look, "replicas", timeout_s=WAIT_S, supervisors=(supervisor,))
