"""Faults of real processes under load, with the rules of ``support.chaos.real``.

Each process is on a host of its own, which needs Linux and root; elsewhere this skips.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAULTS = int(os.environ.get("TIDEGATE_CHAOS_FAULTS", "12"))
SEED = os.environ.get("TIDEGATE_CHAOS_SEED", "0")
UNSUPPORTED = 2


@pytest.mark.timeout(0)
@pytest.mark.usefixtures("demo_extra")
def test_no_fault_breaks_a_rule():
    """No request is lost that may be repeated, no sequence is on two replicas, all end up equal."""
    program = (sys.executable, "-m", "support.chaos.real", "--faults", str(FAULTS), "--seed", SEED)
    path = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    ended = subprocess.run(
        program, env={**os.environ, **path}, check=False, text=True, stdout=subprocess.PIPE
    )
    sys.stdout.write(ended.stdout)
    if ended.returncode == UNSUPPORTED:
        pytest.skip(ended.stdout)
    assert ended.returncode == 0, ended.stdout
