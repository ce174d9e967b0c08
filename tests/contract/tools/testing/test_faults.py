"""Planted faults: found, missed, and stale ones, in a repository made for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.testing.faults import LIST, ROOT, read_list, run

LISTED = """
[[fault]]
defect = "A sum is a difference"
file = "sums.py"
old = "a + b"
new = "a - b"
tests = ["test_sums.py"]

[[fault]]
defect = "A product is a sum"
file = "sums.py"
old = "a * b"
new = "a + b"
tests = ["test_sums.py"]

[[fault]]
defect = "A text that is gone"
file = "sums.py"
old = "a / b"
new = "a"
tests = ["test_sums.py"]

[[fault]]
defect = "A module that cannot be imported"
file = "sums.py"
old = "a * b"
new = "a *"
tests = ["test_sums.py"]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository whose test knows of sums only."""
    (tmp_path / "sums.py").write_text(
        "def add(a, b):\n    return a + b\n\ndef times(a, b):\n    return a * b\n"
    )
    (tmp_path / "test_sums.py").write_text(
        "from sums import add\n\ndef test_it():\n    assert add(1, 2) == 3\n"
    )
    (tmp_path / "list.toml").write_text(LISTED)
    for words in (("init", "-q"), ("add", ".")):
        subprocess.run(("git", *words), cwd=tmp_path, check=True)  # noqa: S607 - any git
    return tmp_path


def test_each_fault_is_found_missed_or_stale(checkout: Path, capsys, monkeypatch):
    """And the checkout itself is not changed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # three seconds less
    before = (checkout / "sums.py").read_bytes()
    faults = read_list(checkout / "list.toml")
    assert run(faults, checkout) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["found", "missed", "stale", "stale"]
    assert last == "1 found, 1 missed, 2 stale"
    assert run(faults[:1], checkout) == 0
    assert (checkout / "sums.py").read_bytes() == before


def test_a_fault_without_tests_is_refused(tmp_path: Path):
    """Nothing would find it."""
    (tmp_path / "list.toml").write_text(LISTED.replace('["test_sums.py"]', "[]"))
    with pytest.raises(ValueError, match="names no test"):
        read_list(tmp_path / "list.toml")


def test_the_list_has_at_least_fifty_faults_of_the_product():
    """Each with a name of its own; whether they apply is what the tool says."""
    faults = read_list(ROOT / LIST)
    assert len({each.defect for each in faults}) == len(faults) >= 50
    assert all(each.named([each.defect[:20]]) and not each.named(["no such"]) for each in faults)
