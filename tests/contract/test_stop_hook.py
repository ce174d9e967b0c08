"""The preStop hook of ``deploy/kubernetes``: its command, run by a shell against the real pages.

The certificates are those that ``tidegate certs`` makes. A settings file of curl says where the
control server is; the command is as it stands in the manifest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tidegate.stack.certificates import make
from tidegate.stack.processes.ports import HeldPorts
from tidegate_common.tls.pages import serve_pages
from tidegate_common.tls.settings import secured
from xds_server.admin.pages import pages
from xds_server.fleet.change import UnknownName
from xds_server.settings import ControlSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MANIFEST = Path(__file__).resolve().parents[2] / "deploy/kubernetes/triton.yaml"
SERVICE = "tidegate-control.infer"
POD_IP = "10.0.0.7"
HTTP_ERROR, NOT_REACHED, NOT_VERIFIED = 22, 7, 60
"""Exit codes of curl."""


class Busy:
    """Knows the replica of one pod, in use for some looks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.looks = 0
        """Further looks at which it is in use."""

    def ids(self, wanted: str) -> frozenset[str]:
        """Return the replicas at an address."""
        self.asked.append(wanted)
        if wanted != POD_IP:
            raise UnknownName("endpoint", wanted, ["triton-0"])
        return frozenset({"triton-0"})

    def state(self, _: frozenset[str]) -> Any:
        """Return whether it is safe to stop."""
        self.looks -= 1
        return SimpleNamespace(safe=self.looks < 0, waits_for=("picker p1: 1 request in flight",))


class Pages(NamedTuple):
    """Pages that are served."""

    port: str
    busy: Busy


class Ended(NamedTuple):
    """How a hook ended."""

    code: int | None
    output: str


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return certificates as the page on Kubernetes makes them."""
    for program in ("openssl", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"the {program} command is not installed")
    folder = tmp_path_factory.mktemp("certs")
    make(folder, [SERVICE])
    return folder


@contextlib.asynccontextmanager
async def serving(folder: Path, port: int = 0) -> AsyncIterator[Pages]:
    """Serve the pages with the certificate in a folder."""
    settings = ControlSettings.model_validate(
        {
            "fleet": "fleet.yaml",
            "tls_cert": folder / "tls.crt",
            "tls_key": folder / "tls.key",
            "tls_ca": folder / "ca.crt",
        }
    )
    busy = Busy()
    app = pages(CollectorRegistry(), busy)  # type: ignore[arg-type]  # enough of it
    at = f"127.0.0.1:{port}"
    async with serve_pages(app, at, secured(settings), lambda *_: None) as bound:
        yield Pages(bound.rpartition(":")[2], busy)


def statefulset_pod() -> dict[str, Any]:
    """Return the pod of the manifest."""
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in yaml.safe_load_all(MANIFEST.read_text())
        if each["kind"] == "StatefulSet"
    )
    return dict(pod)


def command(folder: Path, *changes: tuple[str, str]) -> list[str]:
    """Return the hook's command with the Secret in a folder."""
    container = statefulset_pod()["containers"][0]
    shell, flag, text = container["lifecycle"]["preStop"]["exec"]["command"]
    for old, new in (("/hook", str(folder)), *changes):
        assert old in text
        text = text.replace(old, new)
    return [shell, flag, text]


async def run(words: list[str], port: str, home: Path, pod_ip: str = POD_IP) -> Ended:
    """Run a hook whose control server is at a port of this machine."""
    (home / ".curlrc").write_text(f'connect-to = "{SERVICE}:18080:127.0.0.1:{port}"\n')
    hook = await asyncio.create_subprocess_exec(
        *words,
        env={"PATH": os.environ["PATH"], "CURL_HOME": str(home), "POD_IP": pod_ip},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await hook.communicate()
    return Ended(hook.returncode, said.decode())


async def test_a_pod_waits_until_it_is_safe_to_stop(certificates: Path, tmp_path: Path) -> None:
    """The hook ends well only then, and asks about the pod's own address."""
    async with serving(certificates / "control") as served:
        served.busy.looks = 2
        ended = await run(command(certificates / "reporter"), served.port, tmp_path)
    assert ended == Ended(0, "safe to stop: triton-0\n")
    assert served.busy.asked == [POD_IP]
    assert served.busy.looks < 0


async def test_what_is_still_in_use_fails_the_hook(certificates: Path, tmp_path: Path) -> None:
    """At the end of its time, without another wait that the pod has no time for."""
    shorter = command(
        certificates / "reporter",
        ("timeout=300", "timeout=1"),
        ("--retry-max-time 25", "--retry-max-time 1"),
    )
    async with serving(certificates / "control") as served:
        served.busy.looks = 10**6
        ended = await run(shorter, served.port, tmp_path)
    assert ended.code == HTTP_ERROR
    assert "503" in ended.output
    assert len(served.busy.asked) == 1


async def test_a_control_server_that_starts_is_waited_for(
    certificates: Path, tmp_path: Path
) -> None:
    """It is replaced now and then, and pods stop at that moment, too."""
    async with serving(certificates / "control") as before:
        port = int(before.port)
    hook = asyncio.create_task(run(command(certificates / "reporter"), str(port), tmp_path))
    done, _ = await asyncio.wait({hook}, timeout=1)
    assert not done
    async with serving(certificates / "control", port):
        assert await hook == Ended(0, hook.result().output)
    assert "safe to stop: triton-0" in hook.result().output


async def test_a_control_server_that_stays_away_fails_the_hook(
    certificates: Path, tmp_path: Path
) -> None:
    """The pod is stopped nevertheless: Triton then ends what it has."""
    shorter = command(certificates / "reporter", ("--retry-max-time 25", "--retry-max-time 1"))
    with HeldPorts() as ports:  # no other process serves there
        port = str(ports.take())
        assert (await run(shorter, port, tmp_path)).code == NOT_REACHED


async def test_another_server_is_not_believed(certificates: Path, tmp_path: Path) -> None:
    """One whose certificate has another name cannot say that a replica may be stopped."""
    make(elsewhere := tmp_path / "others", ["another.infer"])
    async with serving(elsewhere / "control") as served:
        ended = await run(command(certificates / "reporter"), served.port, tmp_path)
    assert ended.code == NOT_VERIFIED
    assert not served.busy.asked


async def test_a_replica_s_certificate_reads_nothing_else(
    certificates: Path, tmp_path: Path
) -> None:
    """What runs in a replica's pod learns nothing of the fleet."""
    words = command(
        certificates / "reporter", ("/safe-to-stop?endpoint=$POD_IP&timeout=300", "/metrics")
    )
    async with serving(certificates / "control") as served:
        ended = await run(words, served.port, tmp_path)
    assert ended.code == HTTP_ERROR
    assert "403" in ended.output


def test_the_grace_period_has_room_for_the_hook_and_for_triton() -> None:
    """Triton waits for all of its time, since Envoy's health checks keep connections to it."""
    pod = statefulset_pod()
    (container,) = pod["containers"]
    (exit_s,) = (
        int(each.partition("=")[2])
        for each in container["args"]
        if each.startswith("--exit-timeout-secs=")
    )
    hook = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    options = ("--retry-max-time", "--max-time")
    hook_s = sum(int(hook.partition(f"{each} ")[2].split()[0]) for each in options)
    assert hook_s + exit_s <= pod["terminationGracePeriodSeconds"]
