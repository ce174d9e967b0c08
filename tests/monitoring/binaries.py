"""prometheus and promtool: those of this machine, or Debian's, unpacked into a cache.

Rules:

1. What is on the PATH is used. Else Debian's package is downloaded with apt, which checks it, and
   unpacked into ``TIDEGATE_PROMETHEUS_HOME``, by default ``~/.cache/tidegate-prometheus``; nothing
   is installed, and no service starts.
2. What fails raises: who asks for a real Prometheus gets no silence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGE = "prometheus"


def home() -> Path:
    """Return the folder into which the package is unpacked."""
    given = os.environ.get("TIDEGATE_PROMETHEUS_HOME")
    return Path(given) if given else Path.home() / ".cache" / "tidegate-prometheus"


def found(name: str) -> Path:
    """Return the path of ``prometheus`` or ``promtool``; get it if it is not there.

    Raises:
        RuntimeError: It cannot be had; the message says what would help.
    """
    if there := shutil.which(name):
        return Path(there)
    path = home() / "usr" / "bin" / name
    if not path.exists():
        _unpack(home())
    return path


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise RuntimeError(
            "there is no Prometheus on the PATH, and no apt to get it with; install it from"
            " https://prometheus.io/download"
        )
    with tempfile.TemporaryDirectory() as made:
        try:
            _run(made, "apt-get", "download", PACKAGE)
        except RuntimeError:  # this machine has no list of packages yet
            _run(made, "apt-get", "update")
            _run(made, "apt-get", "download", PACKAGE)
        (package,) = Path(made).glob("*.deb")
        whole = Path(made) / "whole"
        _run(made, "dpkg-deb", "-x", str(package), str(whole))
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(whole, folder, symlinks=True, dirs_exist_ok=True)


def _run(folder: str, *command: str) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
