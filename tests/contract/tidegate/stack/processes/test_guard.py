"""The guard that ties a child to its parent."""

import os
import subprocess
import sys
from pathlib import Path

from tidegate.stack.processes import guard

GUARD = Path(guard.__file__)


def test_it_executes_the_program():
    """The process id stays the same, so signals reach the program."""
    command = [sys.executable, str(GUARD), str(os.getpid()), "0", "/bin/sh", "-c", "echo $$"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=60)
        assert int(output) == process.pid


def test_an_orphan_does_not_start():
    """If the parent has already ended, the program is not started."""
    command = [sys.executable, str(GUARD), "1", "0", "/bin/echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "the parent ended" in done.stderr
