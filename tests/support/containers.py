"""Runs the services of a compose file as processes, where there is no container engine.

Rules:

1. A container's address ``10.213.N.M`` is ``127.X.N.M``, which also stands for its loopback and for
   all its addresses.
2. A container's file system is a folder: each mount is a link in it to a folder of the host or of
   a volume, and paths in commands, variables and health checks are read below it.
3. The programs of images are this machine's: the project, Envoy and Triton.
4. ``depends_on`` is followed with its conditions; a service is healthy once its check passes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from tidegate.stack.envoy import envoy_binary
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import wait_until
from tidegate.stack.tritons import replica as triton

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidegate.stack.runfolder import RunFolder

ROOT: Final = Path(__file__).resolve().parents[2]
HEALTHY_S: Final = 90.0
RUN_S: Final = 60.0
NETWORK: Final = re.compile(r"\b10\.213\.(\d+\.\d+)\b")
COMPLETED: Final = "service_completed_successfully"
WRITES_FOR: Final = {"bootstrap": "envoy"}
"""A service without a network whose loopback is that of the service for which it writes."""
_TRITON: Final = "tritonserver"


class Ended(NamedTuple):
    """How a one-shot service ended."""

    code: int
    output: str


def compose() -> dict[str, Any]:
    """Return the compose file."""
    text: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return text


def mounts(service: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return source, and whether it is read-only, of each mount of a service by its place."""
    found = {}
    for volume in service.get("volumes", ()):
        source, target, *how = volume.split(":")
        found[target] = (source, how == ["ro"])
    return found


def seconds(given: str) -> float:
    """Return a duration such as ``2s``."""
    return float(given.removesuffix("s"))


class Containers:
    """The services of the compose file; ``stop`` ends them.

    Args:
        run: Folder for file systems, volumes and logs.
        environment: Further variables of all services.
    """

    def __init__(self, run: RunFolder, environment: Mapping[str, str]) -> None:
        self.services: dict[str, dict[str, Any]] = compose()["services"]
        self.networks: dict[str, dict[str, Any]] = compose()["networks"]
        self.supervisor = Supervisor(run.logs)
        self._run = run
        self._more = dict(environment)
        self._net = random.SystemRandom().randrange(64, 250)
        self._programs = self._make_programs()
        for name in self.services:
            self._mount(name)

    # --- Translation ----------------------------------------------------------------------------

    def root(self, name: str) -> Path:
        """Return the folder that is a service's file system."""
        return self._run.path / "containers" / name

    def volume(self, name: str) -> Path:
        """Return the folder of a volume."""
        return self._run.path / "volumes" / name

    def address(self, name: str, network: str) -> str:
        """Return the address of a service in a network."""
        return self.translate(name, self.services[name]["networks"][network]["ipv4_address"])

    def published(self, name: str) -> list[str]:
        """Return the addresses at which the published ports of a service answer."""
        ports = [each.rpartition(":")[2] for each in self.services[name].get("ports", ())]
        return [f"{self._edge(name)}:{port}" for port in ports]

    def translate(self, name: str, text: str) -> str:
        """Return a text of a service with the addresses and paths of this machine."""
        text = NETWORK.sub(rf"127.{self._net}.\1", text)
        if own := self._edge(name):
            text = text.replace("127.0.0.1", own).replace("0.0.0.0", own)  # noqa: S104 - replaced
        service = self.services[name]
        places = {
            str(part)
            for target in (*mounts(service), *service.get("tmpfs", ()))
            for part in (Path(target), *Path(target).parents)
        } - {"/"}
        known = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
        return re.sub(rf"(?<![\w./-])({known})(?![\w.-])", rf"{self.root(name)}\1", text)

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service."""
        base = {k: v for k, v in service_environment().items() if not k.startswith("TIDEGATE_")}
        own = self.services[name].get("environment", {})
        return {
            **base,
            **self._more,
            "PATH": os.pathsep.join((str(self._programs), os.environ.get("PATH", ""))),
            "TMPDIR": str(self.root(name) / "tmp"),
            "CONTAINER": name,
            **{key: self.translate(name, value) for key, value in own.items()},
        }

    def command(self, name: str, *instead: str) -> tuple[str, ...]:
        """Return the command line of a service.

        Args:
            name: The service.
            instead: Words in place of its command.
        """
        service = self.services[name]
        given = [self.translate(name, each) for each in instead or service["command"]]
        image = service["image"]
        entry = service.get("entrypoint", [])
        if not entry and image == "tidegate:local":
            text = (ROOT / "deploy/docker/Dockerfile").read_text()
            entry = json.loads(text.rpartition("ENTRYPOINT ")[2].partition("\n")[0])
        if not entry and image == "tidegate-envoy:local":
            entry = ["envoy"]
        return (*entry, *given)

    # --- Running --------------------------------------------------------------------------------

    async def up(self) -> None:
        """Start all services without a profile, in the order of their conditions.

        Raises:
            RuntimeError: A one-shot service failed.
            StackError: A service was not healthy in time.
        """
        begun: dict[str, asyncio.Task[None]] = {}

        async def begin(name: str) -> None:
            await asyncio.gather(*(begun[each] for each in self._waits(name)))
            if not self._is_one_shot(name):
                await self.start(name)
                await self.wait_healthy(name)
                return
            ended = await self.once(name)
            if ended.code:
                raise RuntimeError(f"{name}: {ended.output}")

        for name, service in self.services.items():
            if not service.get("profiles"):
                begun[name] = asyncio.create_task(begin(name))
        await asyncio.gather(*begun.values())

    async def start(self, name: str) -> None:
        """Start a service that runs on."""
        await self.supervisor.start(
            name, self.command(name), self.environment(name), group=True, cwd=self.root(name)
        )

    async def once(
        self, name: str, *instead: str, without: Sequence[str] = (), **more: str
    ) -> Ended:
        """Run a service to its end.

        Args:
            name: The service.
            instead: Words in place of its command.
            without: Variables that are left out.
            more: Variables that are added.
        """
        variables = {**self.environment(name), **more}
        return await self._ended(
            self.command(name, *instead),
            {key: value for key, value in variables.items() if key not in without},
            self.root(name),
            RUN_S,
        )

    async def hook(self, name: str) -> Ended:
        """Run a service's hook before its stop, in its running container."""
        (hook,) = self.services[name]["pre_stop"]
        argv = [self.translate(name, each) for each in hook["command"]]
        return await self._ended(argv, self.environment(name), self.root(name), RUN_S)

    async def health(self, name: str) -> str | None:
        """Run a service's health check once; return what is wrong, ``None`` if it passes."""
        check = self.services[name]["healthcheck"]
        kind, *words = check["test"]
        assert kind == "CMD"
        argv = tuple(self.translate(name, each) for each in words)
        # A check that is slow because this machine is busy fails later than in a container.
        patience = 5 * seconds(check["timeout"])
        code, output = await self._ended(argv, self.environment(name), self.root(name), patience)
        return output or f"exit code {code}" if code else None

    async def wait_healthy(self, name: str) -> None:
        """Wait until a service's health check passes."""

        async def look() -> str | None:
            return await self.health(name)

        await wait_until(look, name, timeout_s=HEALTHY_S, supervisors=(self.supervisor,))

    async def stop(self) -> None:
        """End all services."""
        await self.supervisor.stop()
        for name in self.services:
            triton.remove_shared_memory(self._run, name)

    # --- Parts ----------------------------------------------------------------------------------

    def _waits(self, name: str) -> dict[str, str]:
        """Return the services that a service waits for, with the condition."""
        found = self.services[name].get("depends_on", {})
        return {each: how["condition"] for each, how in found.items()}

    def _is_one_shot(self, name: str) -> bool:
        return COMPLETED in {self._waits(each).get(name) for each in self.services}

    async def _ended(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, most_s: float
    ) -> Ended:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=env,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(most_s):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            said, _ = await process.communicate()
            return Ended(-1, f"not finished within {most_s} s: {said.decode(errors='replace')}")
        assert process.returncode is not None
        return Ended(process.returncode, said.decode(errors="replace"))

    def _edge(self, name: str) -> str:
        """Return a service's address in the network that is not internal, or its first, if any."""
        own = self.services[WRITES_FOR.get(name, name)].get("networks") or {}
        if not isinstance(own, dict) or not own:
            return ""
        order = sorted(own, key=lambda each: bool(self.networks[each].get("internal")))
        found: str = own[order[0]]["ipv4_address"]
        return NETWORK.sub(rf"127.{self._net}.\1", found)

    def _mount(self, name: str) -> None:
        root, service = self.root(name), self.services[name]
        for place in ("/tmp", *service.get("tmpfs", ())):  # noqa: S108 - of a container
            Path(f"{root}{place}").mkdir(parents=True, exist_ok=True)
        for target, (source, _) in sorted(mounts(service).items()):
            place = Path(f"{root}{target}")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(self._source(source))

    def _source(self, source: str) -> Path:
        if not source.startswith("."):
            folder = self.volume(source)
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        found = (ROOT / source).resolve()
        if not found.is_relative_to(ROOT / "deploy"):
            return found
        # Files that name addresses of containers, and paths of Envoy's.
        copy = self._run.path / "copies" / found.name
        shutil.copytree(found, copy, dirs_exist_ok=True)
        for path in copy.glob("*.yaml"):
            path.write_text(self.translate("envoy", path.read_text()))
        return copy

    def _make_programs(self) -> Path:
        folder = self._run.path / "programs"
        folder.mkdir()
        python = shlex.quote(sys.executable)
        envoy = shlex.quote(str(envoy_binary()))
        scripts = {
            "python": f'exec {python} -P "$@"',
            "tidegate": f'exec {python} -P -m tidegate "$@"',
            "envoy": f'exec {envoy} --concurrency 2 "$@"',
            _TRITON: self._triton_script(),
        }
        for name, text in scripts.items():
            path = folder / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o700)
        return folder

    def _triton_script(self) -> str:
        """Return what starts a Triton on its container's addresses."""
        installation = triton.find_triton()
        backends = triton.prepare_backends(self._run, installation)
        nobody = triton.TritonReplica(name="", http="", grpc="", metrics="")
        variables = triton.triton_environment(installation, nobody, {})
        lines = [
            f"export LD_LIBRARY_PATH={shlex.quote(variables['LD_LIBRARY_PATH'])}",
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            "case $CONTAINER in",
        ]
        for name, service in self.services.items():
            if service["command"][0] == _TRITON:
                at = self._edge(name)
                prefix = triton.shared_memory_prefix(self._run, name)
                words = (
                    *(f"--{port}-address={at}" for port in ("http", "grpc", "metrics")),
                    f"--backend-directory={backends}",
                    f"--backend-config=python,shm-region-prefix-name={prefix}",
                    f"--exit-timeout-secs={triton.EXIT_TIMEOUT_S}",
                )
                lines.append(f"{name}) own='{' '.join(words)}' ;;")
        return "\n".join(
            [*lines, "esac", f'exec {shlex.quote(str(installation.server))} "$@" $own']
        )
