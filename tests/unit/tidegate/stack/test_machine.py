"""What is said of a machine or a Python without wheels."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tidegate.stack import machine
from tidegate.stack.machine import GLIBC, LAST_DEMO_PYTHON, Machine, lacking

ROOT = Path(__file__).resolve().parents[4]
GOOD = Machine("Linux", "x86_64", (2, 35), "CPython", (3, 11))


@pytest.mark.parametrize("extra", ["envoy", "demo"])
@pytest.mark.parametrize("python", [(3, 11), (3, 12)])
def test_a_machine_with_wheels_lacks_nothing(extra: str, python: tuple[int, int]) -> None:
    """The oldest C library that the wheels name is enough."""
    assert lacking(extra, GOOD._replace(python=python)) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"python": (3, 13)}, "CPython 3.11 or 3.12 (numpy 1, which it needs,"),
        ({"python": (3, 8)}, "this is CPython 3.8"),
        ({"implementation": "PyPy"}, "this is PyPy 3.11"),
        ({"glibc": (2, 34)}, "aarch64; this is Linux with glibc 2.34 on x86_64"),
        ({"glibc": None}, "this is Linux with another C library on x86_64"),
        ({"system": "Darwin", "machine": "arm64", "glibc": None}, "this is Darwin on arm64"),
        ({"machine": "riscv64"}, "this is Linux with glibc 2.35 on riscv64"),
    ],
)  # fmt: skip
def test_what_the_demo_lacks_is_one_sentence(change: dict[str, object], said: str) -> None:
    """It says what is needed and what is there."""
    text = lacking("demo", GOOD._replace(**change))
    assert said in text
    assert "\n" not in text


def test_envoy_alone_needs_less() -> None:
    """Its wheel runs with an older C library and is for every Python."""
    assert lacking("envoy", GOOD._replace(glibc=(2, 31), python=(3, 14))) == ""
    assert "glibc 2.31" in lacking("envoy", GOOD._replace(glibc=(2, 30)))


def test_this_machine_is_described() -> None:
    """The tests run where the demo does, so nothing is lacking."""
    here = machine.this_machine()
    assert here.python == sys.version_info[:2]
    assert lacking("demo", here) == ""


def test_the_purpose_and_the_fix_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an unfit Python the fix is another one; the exit code stops make."""
    monkeypatch.setattr(machine, "this_machine", lambda: GOOD._replace(python=(3, 13)))
    assert machine.main(["demo", "make test"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("make test: ")
    assert said.endswith("make test PYTHON=python3.12 uses another\n")


def test_old_pythons_can_read_the_file() -> None:
    """Its syntax is that of Python 3.8, and it imports the standard library alone."""
    tree = ast.parse(Path(machine.__file__).read_text(), feature_version=(3, 8))
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= set(sys.stdlib_module_names)


def test_the_extras_leave_out_what_has_no_wheel() -> None:
    """Their markers name the same Pythons, so that pip installs `all` on the others too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    first_without = f"{LAST_DEMO_PYTHON[0]}.{LAST_DEMO_PYTHON[1] + 1}"
    for package in ("numpy", "nvidia-pytriton"):
        (line,) = [each for each in extras["demo"] if each.startswith(package)]
        assert f"python_version < '{first_without}'" in line
    assert set(GLIBC) <= set(extras)
    assert "tidegate[envoy]" in extras["demo"]
    everything = re.fullmatch(r"tidegate\[(.*)\]", extras["all"][0])
    assert everything is not None
    assert set(everything[1].split(",")) == set(extras) - {"all", "bench", "dev", "docs", "envoy"}


def test_the_core_does_not_bring_the_clients_of_the_demo() -> None:
    """Tritonclient and what it needs are 40 % of an installation's size."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [line for line in project["dependencies"] if "triton" in line or "numpy" in line]
