"""The command line: help, version, exit codes and usage errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidegate.cli.main import VERBS
from tidegate.stack.assets import ExtraMissingError

if TYPE_CHECKING:
    from support.command_line import Run


@pytest.mark.parametrize("verb", [one.name for one in VERBS])
def test_every_verb_explains_itself_with_an_example(run: Run, verb: str) -> None:
    """``--help`` of each verb works without a server and shows an example without colour codes."""
    ran = run(verb, "--help")
    assert ran.code == 0
    assert f"Example: tidegate {verb}" in " ".join(ran.out.replace("│", " ").split())
    assert "\x1b" not in ran.out


def test_no_verb_shows_the_help(run: Run) -> None:
    """The command without arguments lists the verbs."""
    ran = run()
    assert "rollback" in ran.out + ran.err


def test_the_version_is_printed(run: Run) -> None:
    """``--version`` prints the program's name and version."""
    ran = run("--version")
    assert ran.code == 0
    assert ran.out.startswith("tidegate ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("sail",),
        ("get", "tides"),
        ("weight", "llm"),
        ("weight", "llm", "canary"),
        ("weight", "llm", "canary=-1"),
        ("weight", "llm", "canary=1", "canary=2"),
        ("weight", "llm", "canary=4294967296"),
        ("rollback", "zero"),
        ("validate",),
        ("status", "-o", "xml"),
        ("demo", "--replicas", "2"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    """Invalid arguments are rejected with exit code 2."""
    assert run(*arguments).code == 2


def test_a_missing_server_is_one_sentence(run: Run) -> None:
    """No server at the address: exit code 3 and one line with the fix, no traceback."""
    ran = run("status", "--server", "127.0.0.1:1")
    assert ran.code == 3
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert "cannot reach the control server at 127.0.0.1:1" in ran.err
    assert "tidegate xds --fleet" in ran.err


def test_the_server_may_come_from_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``TIDEGATE_SERVER`` replaces the default of ``--server``."""
    monkeypatch.setenv("TIDEGATE_SERVER", "127.0.0.1:2")
    assert "at 127.0.0.1:2" in run("status").err


def test_the_demo_without_its_extra_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Triton, the demo fails with the pip command to run, not with a traceback."""

    def missing() -> None:
        raise ExtraMissingError("Triton", "demo")

    monkeypatch.setattr("tidegate.stack.tritons.replica.find_triton", missing)
    ran = run("demo", "--exit")
    assert ran.code == 1
    assert "pip install 'tidegate[demo]'" in ran.err
