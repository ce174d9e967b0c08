"""The page of settings: each option that it names exists in the program that it is for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tidegate.doctor.host import FILES_A_CONNECTION, LEAST_BACKLOG, SPARE_FILES
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary
from tidegate.stack.tritons.replica import find_triton

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/reference/settings.md").read_text()
OPTION = re.compile(r"--[a-z][a-z0-9-]+")


def options(title: str) -> set[str]:
    """Return the options in the first cells of a section's table."""
    _, _, section = PAGE.partition(f"\n## {title}\n")
    rows = [
        line.split("|")[1] for line in section.partition("\n## ")[0].splitlines() if "|" in line
    ]
    return set(OPTION.findall(" ".join(rows)))


def helped(*command: object, env: dict[str, str] | None = None) -> set[str]:
    """Return the options that a program's help names."""
    ended = subprocess.run(
        [*map(str, command), "--help"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return set(OPTION.findall(ended.stdout + ended.stderr))


def test_triton_has_the_options() -> None:
    """As its help says, which needs no GPU."""
    try:
        found = find_triton()
    except ExtraMissingError as missing:
        pytest.skip(str(missing))
    env = {"LD_LIBRARY_PATH": str(found.libraries)}
    assert options("Triton")
    assert options("Triton") <= helped(found.server, env=env)


def test_envoy_has_the_options() -> None:
    """As its help says."""
    try:
        binary = envoy_binary()
    except ExtraMissingError as missing:
        pytest.skip(str(missing))
    assert options("Envoy")
    assert options("Envoy") <= helped(binary)


def test_the_machine_s_settings_are_those_that_the_doctor_asks_for() -> None:
    """A machine that follows the page is not blamed."""
    files = re.findall(r"`LimitNOFILE` ≥ (\d+) \u00d7 `--max-connections` \+ ([\d,]+)", PAGE)
    assert files == [(str(FILES_A_CONNECTION), f"{SPARE_FILES:,}")]
    (backlog,) = re.findall(r"net\.core\.somaxconn = (\d+)", PAGE)
    assert int(backlog) >= LEAST_BACKLOG


def test_vllms_connections_outlive_envoys() -> None:
    """Else Envoy may send a request on a connection that is being closed."""
    (alive,) = re.findall(r"VLLM_HTTP_TIMEOUT_KEEP_ALIVE=(\d+)", PAGE)
    source = (ROOT / "xds_server/resources/clusters.py").read_text()
    (idle,) = re.findall(r"idle_timeout=timedelta\(seconds=(\d+)\)", source)
    assert int(alive) > int(idle)
    assert f"Envoy after {idle}" in PAGE
