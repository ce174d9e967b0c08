"""``top``: once without a terminal, refreshed on one."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run


def filled(admin: FakeAdmin) -> None:
    """Let the control server have a pool with one replica."""
    admin.status.pools.add(pool="llm").variants.add(variant="stable", replicas=1, usable=1)
    answer = api.GetReplicasResponse(
        replicas=[api.ReplicaStatus(pool="llm", endpoint="r1", variant="stable", state="in use")]
    )
    admin.calls["GetReplicas"] = lambda *_: answer


def test_without_a_terminal_it_prints_once(run: Run, admin: FakeAdmin) -> None:
    """Scripts and logs get plain lines."""
    filled(admin)
    ran = run("top", "--server", admin.address)
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert ran.out.splitlines()[-1].startswith("r1")


def test_programs_get_json(run: Run, admin: FakeAdmin) -> None:
    """Unknown values are null."""
    filled(admin)
    data = json.loads(run("top", "-o", "json", "--server", admin.address).out)
    assert data["replicas"][0]["in_flight"] is None
    assert data["variants"][0]["usable"] == 1


def test_a_mistyped_pool_is_answered_with_the_closest(run: Run, admin: FakeAdmin) -> None:
    """An empty screen would look as if there were no pools."""
    filled(admin)
    ran = run("top", "--pool", "lm", "--server", admin.address)
    assert ran.code == 1
    assert "no pool 'lm'; did you mean llm?" in ran.err


def test_on_a_terminal_it_refreshes_until_q(admin: FakeAdmin) -> None:
    """The terminal is as before when it ends."""
    filled(admin)
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "top", "--server", admin.address],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "80", "LINES": "24"},
    )
    said, end = b"", time.monotonic() + 60
    try:
        while b"ENDPOINT" not in said and time.monotonic() < end:
            ready, _, _ = select.select([ours], [], [], 1.0)
            said += os.read(ours, 65536) if ready else b""
        assert b"\x1b[?1049h" in said
        os.write(ours, b"q")
        while b"\x1b[?1049l" not in said and time.monotonic() < end:
            ready, _, _ = select.select([ours], [], [], 1.0)
            said += os.read(ours, 65536) if ready else b""
        assert process.wait(timeout=60) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        os.close(ours)
        os.close(theirs)
