"""Python environment of the peers, separate from the project's.

The packages are installed from PyPI into ``.bench/peers``. A package that cannot be installed is
skipped and reported with the end of pip's output; so is llm-d's picker unless its binary is there,
which is built by hand.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PACKAGES: Final = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}
"""Packages of the peers, with the versions of the reported figures."""
ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".bench" / "peers"
LLM_D: Final = "llm-d-router"
PICKER: Final = ROOT / ".bench" / "llm-d" / "epp"
"""llm-d's picker."""
INSTALL_S: Final = 300.0
_VERSION: Final = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


@dataclass(slots=True)
class Environment:
    """Installed and missing packages."""

    python: Path
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Package -> reason."""


async def prepare(folder: Path = FOLDER) -> Environment:
    """Return the environment; create or complete it if needed."""
    environment = Environment(folder / "bin" / "python")
    if not PICKER.exists():
        environment.missing[LLM_D] = f"no {PICKER.relative_to(ROOT)}; docs/reference/bench.md"
    if not environment.python.exists():
        code, text = await _run(sys.executable, "-m", "venv", str(folder))
        if code != 0:
            environment.missing |= dict.fromkeys(PACKAGES, text)
            return environment
    for package, wanted in PACKAGES.items():
        if await _version(environment.python, package) != wanted:
            pip = (str(environment.python), "-m", "pip", "install", "-q")
            code, text = await _run(*pip, "--only-binary=:all:", f"{package}=={wanted}")
            if code != 0:
                environment.missing[package] = text
                continue
        environment.versions[package] = wanted
    return environment


async def _version(python: Path, package: str) -> str | None:
    code, text = await _run(str(python), "-c", _VERSION, package)
    return text if code == 0 else None


async def _run(*command: str) -> tuple[int, str]:
    """Return the exit code, and the output of a success or the end of the errors."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(INSTALL_S):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return 1, f"not done after {INSTALL_S:.0f} s"
    said = stdout if process.returncode == 0 else stderr
    return process.returncode or 0, said.decode("utf-8", "replace").strip()[-500:]
