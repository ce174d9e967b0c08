"""Asking Envoy what it thinks of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fleets import fleet
from tidegate.cli import envoy_check
from tidegate.terminal.errors import CliError

if TYPE_CHECKING:
    from .conftest import FakeAdmin, Run

FLEET = "pools: [{name: a, match: {models: [m]}, endpoints: [{http: '127.0.0.1:8000'}]}]"


def envoy(folder: Path, body: str) -> Path:
    """Write a program that stands in for Envoy."""
    binary = folder / "envoy"
    binary.write_text(f"#!/bin/sh\n{body}\n")
    binary.chmod(0o755)
    return binary


def test_what_envoy_takes_is_fine(tmp_path: Path) -> None:
    """It is asked to validate a file that it can read."""
    body = 'test "$1 $2 $3" = "--mode validate --config-path" && test -s "$4"'
    envoy_check.hold(fleet(), "fleet.yaml", envoy(tmp_path, body))


def test_a_refusal_is_told_in_envoys_words(tmp_path: Path) -> None:
    """Its log's decoration is left out."""
    log = "[critical] error initializing configuration '/tmp/b.pb': Invalid path: /ca.crt"
    with pytest.raises(CliError, match=r"^Envoy refuses fleet.yaml: Invalid path: /ca.crt$"):
        envoy_check.hold(fleet(), "fleet.yaml", envoy(tmp_path, f'echo "{log}" >&2; exit 1'))


def test_an_envoy_that_cannot_be_asked_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a missing nor a hanging binary hangs the command."""
    with pytest.raises(CliError, match="cannot run"):
        envoy_check.hold(fleet(), "fleet.yaml", tmp_path / "none")
    monkeypatch.setattr(envoy_check, "TIMEOUT_S", 0.05)
    with pytest.raises(CliError, match="no opinion within"):
        envoy_check.hold(fleet(), "fleet.yaml", envoy(tmp_path, "exec sleep 5"))


@pytest.mark.parametrize(
    ("log", "told"), [("", "it gives no reason"), ("odd\n", "odd"), ("x" * 9999, "x" * 4096)]
)
def test_other_words_are_kept_within_bounds(log: str, told: str) -> None:
    """Whatever it prints."""
    assert envoy_check.words(log) == told


def test_validate_asks_envoy_where_told_to(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one that is an error, since it was asked for."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: envoy(tmp_path, "exit 0"))
    assert "Envoy takes it" in run("validate", str(file), "--envoy").out
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: envoy(tmp_path, "echo no >&2; exit 1"))
    assert f"Envoy refuses {file}: no" in run("validate", str(file), "--envoy").err
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: None)
    assert "there is no Envoy here" in run("validate", str(file), "--envoy").err


def test_a_dry_run_asks_envoy_where_there_is_one(
    run: Run, admin: FakeAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference is shown in any case."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    apply = ("apply", "-f", str(file), "--dry-run", "--server", admin.address)
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: None)
    assert run(*apply).code == 0
    monkeypatch.setattr(envoy_check, "find_envoy", lambda: envoy(tmp_path, "echo no >&2; exit 1"))
    ran = run(*apply)
    assert (ran.code, "would change" in ran.out, "Envoy refuses" in ran.err) == (1, True, True)
