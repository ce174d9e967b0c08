"""The containers of ``deploy/kubernetes/edge.yaml`` as processes, with the page's certificates.

Each pod has a loopback address of its own in place of the cluster's, which also stands for its
loopback. Probes, volumes and policies are not at work: there is no kubelet.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kubernetes.watched import manifests
from support.crowd import instant_upstreams
from tidegate.stack.certificates import make
from tidegate.stack.envoy import envoy_binary
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import wait_until
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(240)
PODS: Final = {
    "control": "tidegate-control-0",
    "picker": "tidegate-picker-0",
    "edge": "edge-a",
}
REQUESTS: Final = 60
WAIT_S: Final = 60.0
SERVES: Final = {"control": "control", "picker": "picker", "edge": "questions"}


class Pods:
    """The pods of the edge form.

    Args:
        folder: Holds their files and logs.
        replicas: Addresses over HTTP.
    """

    def __init__(self, folder: Path, replicas: Sequence[str]) -> None:
        net = f"127.{random.SystemRandom().randrange(64, 250)}.7"
        self.at = {part: f"{net}.{number}" for number, part in enumerate(PODS, 1)}
        self.supervisor = Supervisor(folder)
        self._folder = folder
        self.certificates = folder / "certs"
        hosts = [self.at["control"], "tidegate-control.infer"]
        make(self.certificates, hosts, pickers=[PODS["picker"]])
        self._specs = {
            part: next(
                each["spec"]["template"]["spec"]
                for each in manifests("edge.yaml", "Deployment", "StatefulSet")
                if each["metadata"]["name"] == f"tidegate-{part}"
            )
            for part in PODS
        }
        (stored,) = manifests("edge.yaml", "ConfigMap")
        text = stored["data"]["fleet.yaml"].replace("@PICKER@", self.at["picker"])
        fleet = yaml.safe_load(self.translate("edge", "envoy", text))
        endpoints = [{"id": f"r{n}", "http": each} for n, each in enumerate(replicas)]
        (pool,) = fleet["pools"]
        own = {"match": {"models": ["toy-llm"]}, "variants": [{"name": "all"}]}
        fleet["pools"] = [{**pool, **own, "endpoints_from": [], "endpoints": endpoints}]
        (self._mounts("control", "control")["/etc/tidegate"] / "fleet.yaml").write_text(
            yaml.safe_dump(fleet)
        )

    def container(self, part: str, name: str) -> dict[str, Any]:
        """Return a container of a pod."""
        spec = self._specs[part]
        (found,) = (
            each
            for each in (*spec.get("initContainers", ()), *spec["containers"])
            if each["name"] == name
        )
        return dict(found)

    def _mounts(self, part: str, name: str) -> dict[str, Path]:
        volumes = {each["name"]: each for each in self._specs[part]["volumes"]}
        found = {}
        for each in self.container(part, name).get("volumeMounts", ()):
            secret = volumes.get(each["name"], {}).get("secret")
            role = secret and secret["secretName"].removeprefix("tidegate-")
            place = self.certificates / role if role else self._folder / part / each["name"]
            place.mkdir(parents=True, exist_ok=True)
            found[each["mountPath"]] = place
        return found

    def translate(self, part: str, name: str, text: str) -> str:
        """Return a text of a container with the paths and addresses of this machine."""
        places = self._mounts(part, name)
        if name == "bootstrap":  # it names files of another container
            places = {**self._mounts(part, "envoy"), **places}
        known = "|".join(sorted(map(re.escape, places), key=len, reverse=True))
        text = re.sub(rf"(?<![\w./-])({known})(?![\w.-])", lambda m: str(places[m[1]]), text)
        text = text.replace("$(TIDEGATE_PICKER_SERVICE_HOST)", self.at["picker"])
        text = text.replace("$(POD)", PODS[part]).replace(
            "tidegate-control.infer", self.at["control"]
        )
        return re.sub(r"0\.0\.0\.0|127\.0\.0\.1", self.at[part], text)

    def environment(self, part: str, name: str) -> dict[str, str]:
        """Return the variables of a container."""
        given = {
            each["name"]: self.translate(part, name, each.get("value", "$(POD)"))
            for each in self.container(part, name).get("env", ())
        }
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        return {**service_environment(), "PATH": path, **given}

    def command(self, part: str, name: str) -> tuple[str, ...]:
        """Return the command line of a container."""
        made = self.container(part, name)
        args = [self.translate(part, name, each) for each in made.get("args", ())]
        if "command" in made:
            return (*made["command"], *args)
        if made["image"].startswith("tidegate:"):
            return module_command("tidegate", *args)
        return (str(envoy_binary()), *args)

    async def start(self, part: str, name: str) -> None:
        """Start a container that runs on."""
        await self.supervisor.start(name, self.command(part, name), self.environment(part, name))

    async def once(self, part: str, name: str, *words: str) -> str:
        """Run a container that ends, or another command in one; return what it prints."""
        command = words or self.command(part, name)
        process = await asyncio.create_subprocess_exec(
            *command,
            env=self.environment(part, name),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    async def tidegate(self, *words: str) -> str:
        """Run the command line as `kubectl exec` does in the control server's container."""
        return await self.once("control", "control", *module_command("tidegate", *words))

    def viewer(self) -> ssl.SSLContext:
        """Return what a PodMonitor reads metrics with."""
        own = self.certificates / "viewer"
        context = ssl.create_default_context(cafile=own / "ca.crt")
        context.load_cert_chain(own / "tls.crt", own / "tls.key")
        return context


async def counted(pods: Pods, http: aiohttp.ClientSession, worker: int) -> tuple[float, float]:
    """Return a worker's picks, and the entries of Envoy's log that came back to it."""
    url = f"https://{pods.at['picker']}:{18081 + worker}/metrics"
    async with http.get(url, ssl=pods.viewer(), server_hostname="picker.tidegate") as answer:
        page = await answer.text()
    sums = {"tidegate_picker_picks_total": 0.0, "tidegate_picker_feedback_entries_total": 0.0}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    picks, entries = sums.values()
    return picks, entries


async def test_the_parts_of_the_edge_form_find_and_trust_each_other(tmp_path: Path) -> None:
    """Both workers pick and learn what happened; the hook ends well; nothing is refused."""
    async with AsyncExitStack() as exit_:
        replicas = await exit_.enter_async_context(instant_upstreams(2))
        http = await exit_.enter_async_context(aiohttp.ClientSession())
        pods = Pods(tmp_path, replicas)
        exit_.push_async_callback(pods.supervisor.stop)
        await pods.start("control", "control")
        await pods.start("picker", "picker")
        await pods.once("edge", "bootstrap")
        await pods.start("edge", "envoy")
        await pods.start("edge", "questions")
        await wait_until(
            lambda: settled(pods), "clients", timeout_s=WAIT_S, supervisors=(pods.supervisor,)
        )
        body = {"text_input": "once", "max_tokens": 1}
        for _ in range(REQUESTS):
            url = f"http://{pods.at['edge']}:10000/v2/models/toy-llm/generate"
            async with http.post(url, json=body) as answer:
                assert answer.status == 200, await answer.text()

        async def learnt() -> str | None:
            told = [await counted(pods, http, worker) for worker in (0, 1)]
            picks = sum(each for each, _ in told)
            whole = picks == REQUESTS and all(one == two > 0 for one, two in told)
            return None if whole else f"picks and entries of both workers: {told}"

        await wait_until(learnt, "workers", timeout_s=WAIT_S, supervisors=(pods.supervisor,))
        status = await pods.tidegate("status")
        assert "refused" not in status, status
        (hook,) = (
            each["lifecycle"]["preStop"]["exec"]["command"]
            for each in [pods.container("edge", "stop")]
        )
        words = [pods.translate("edge", "stop", each) for each in hook[1:]]
        said = await pods.once("edge", "stop", *module_command("tidegate", *words))
        assert "Envoy is idle" in said


async def settled(pods: Pods) -> str | None:
    """Return which clients of the control server are missing; ``None`` if all are in step."""
    try:
        said = await pods.tidegate("status")
    except AssertionError as error:
        return str(error)
    wanted = [PODS["edge"], *(f"{PODS['picker']}.w{n}" for n in (0, 1)), f"gateway-{PODS['edge']}"]
    rows = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    missing = [each for each in wanted if "SYNCED" not in rows.get(each, "")]
    return f"{missing}: {said}" if missing else None
