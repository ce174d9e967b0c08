"""The check of the machine as a program."""

from __future__ import annotations

import subprocess
import sys

from tidegate.stack import machine


def test_the_file_runs_by_its_path_before_anything_is_installed() -> None:
    """The makefile does so; it says nothing where nothing is lacking."""
    command = [sys.executable, "-I", "-S", str(machine.__file__), "demo", "make demo"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
