"""Validation of a fleet by the Envoy binary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fleets import fleet
from tidegate.cli import envoy_check
from tidegate.terminal.errors import CliError

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run

FLEET = "pools: [{name: a, match: {models: [m]}, endpoints: [{http: '127.0.0.1:8000'}]}]"


def envoy(folder: Path, body: str) -> Path:
    """Write a shell script that replaces Envoy."""
    binary = folder / "envoy"
    binary.write_text(f"#!/bin/sh\n{body}\n")
    binary.chmod(0o755)
    return binary


def test_a_valid_fleet_is_accepted(tmp_path: Path) -> None:
    """Envoy is called in validate mode with a non-empty file."""
    body = 'test "$1 $2 $3" = "--mode validate --config-path" && test -s "$4"'
    envoy_check.hold(fleet(), "fleet.yaml", envoy(tmp_path, body))


def test_a_rejection_quotes_envoy(tmp_path: Path) -> None:
    """The error contains Envoy's message without the log prefix."""
    log = "[critical] error initializing configuration '/tmp/b.pb': Invalid path: /ca.crt"
    with pytest.raises(CliError, match=r"^Envoy rejects fleet.yaml: Invalid path: /ca.crt$"):
        envoy_check.hold(fleet(), "fleet.yaml", envoy(tmp_path, f'echo "{log}" >&2; exit 1'))


def test_an_unusable_binary_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing binary and one that hangs both raise ``CliError``."""
    with pytest.raises(CliError, match="cannot run"):
        envoy_check.hold(fleet(), "fleet.yaml", tmp_path / "none")
    monkeypatch.setattr(envoy_check, "TIMEOUT_S", 0.05)
    with pytest.raises(CliError, match="did not finish within"):
        envoy_check.hold(fleet(), "fleet.yaml", envoy(tmp_path, "exec sleep 5"))


@pytest.mark.parametrize(
    ("log", "expected"), [("", "no reason given"), ("odd\n", "odd"), ("x" * 9999, "x" * 4096)]
)
def test_the_reason_of_a_rejection_is_bounded(log: str, expected: str) -> None:
    """An unknown log is quoted as it is, up to 4096 characters."""
    assert envoy_check.reason(log) == expected


def test_validate_runs_envoy_with_the_option_envoy(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``validate --envoy`` reports Envoy's result, and fails if Envoy is not installed."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: envoy(tmp_path, "exit 0"))
    assert "Envoy accepts it" in run("validate", str(file), "--envoy").out
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: envoy(tmp_path, "echo no >&2; exit 1"))
    assert f"Envoy rejects {file}: no" in run("validate", str(file), "--envoy").err
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: None)
    assert "no Envoy is installed" in run("validate", str(file), "--envoy").err


def test_a_dry_run_validates_with_an_installed_envoy(
    run: Run, admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes are printed even if Envoy rejects the fleet."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    apply = ("apply", "-f", str(file), "--dry-run", "--server", admin.address)
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: None)
    assert run(*apply).code == 0
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: envoy(tmp_path, "echo no >&2; exit 1"))
    ran = run(*apply)
    assert (ran.code, "would change" in ran.out, "Envoy rejects" in ran.err) == (1, True, True)
