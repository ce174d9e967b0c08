"""What of a machine would harm a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.doctor.diagnosis import Level
from tidegate.doctor.host import (
    HostFacts,
    StateFolder,
    judge_host,
    judge_state,
    read_host,
    read_state,
)
from xds_server.fleet.load import load_text

SOUND = HostFacts(65_536, 4_096, (32_768, 60_999), 8_192, 4)
FLEET = """
listener: {address: "127.0.0.1:10000", further: [{name: inner, address: "127.0.0.1:40000"}]}
pools: [{name: a, match: {models: [m]}, endpoints: [{http: "127.0.0.1:8000"}]}]
"""


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"open_files": 1_024}, "1024 open files"),
        ({"backlog": 128}, "net.core.somaxconn"),
        ({"ports": (60_000, 60_999)}, "1000 ports"),
        ({"memory_mib": 1_024}, "1024 MiB"),
        ({"cpus": 1}, "one CPU"),
    ],
)
def test_each_limit_is_a_risk_with_its_fix(facts: dict[str, Any], words: str) -> None:
    """One finding, which names the number and what to set."""
    (found,) = judge_host(SOUND._replace(**facts))
    assert (found.level, words in found.says, bool(found.fix)) == (Level.RISK, True, True)


def test_what_a_machine_does_not_tell_is_no_finding() -> None:
    """Unknown is not wrong."""
    assert list(judge_host(SOUND._replace(backlog=None, ports=None, memory_mib=None))) == []


def test_a_listener_among_the_outgoing_ports_is_a_risk() -> None:
    """Another connection may hold the port when Envoy restarts."""
    (found,) = judge_host(SOUND, load_text(FLEET))
    assert (found.about, "32768 to 60999" in found.says) == ("127.0.0.1:40000", True)


def test_facts_are_read_from_the_kernel(tmp_path: Path) -> None:
    """The least of memory and the control group's limit counts; ``max`` is no limit."""
    for name, text in {
        "proc/sys/net/core/somaxconn": "4096\n",
        "proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 1 kB\n",
        "sys/fs/cgroup/memory.max": "1073741824\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_host(tmp_path)
    assert (found.backlog, found.ports, found.memory_mib) == (4096, (32768, 60999), 1024)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert read_host(tmp_path).memory_mib == 16_000


def test_a_machine_without_these_files_is_read(tmp_path: Path) -> None:
    """Another kernel: unknown."""
    found = read_host(tmp_path)
    assert (found.backlog, found.ports, found.memory_mib) == (None, None, None)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (StateFolder("/x", exists=False, writable=False, free_mib=None), "does not exist"),
        (StateFolder("/x", exists=True, writable=False, free_mib=9_999), "may not be written"),
        (StateFolder("/x", exists=True, writable=True, free_mib=10), "10 MiB of free space"),
    ],
)
def test_a_state_folder_that_takes_no_revisions_is_named(state: StateFolder, words: str) -> None:
    """Missing, not writable, full."""
    (found,) = judge_state(state)
    assert (found.about, words in found.says) == ("/x", True)


def test_a_usable_state_folder_has_no_findings(tmp_path: Path) -> None:
    """It is read as it is."""
    state = read_state(tmp_path)
    assert (state.exists, state.writable) == (True, True)
    assert list(judge_state(state._replace(free_mib=9_999))) == []
    assert not read_state(tmp_path / "none").exists
