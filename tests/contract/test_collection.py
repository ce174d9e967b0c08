"""The check that two collections agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.collection import differences

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "import gzip, tempfile, pytest\n"
TEST = """
@pytest.mark.parametrize("value", {values}, ids=repr)
def test_{name}(value):
    pass
"""


def differ(folder: Path, **values: str) -> list[str]:
    """Return which tests of these names, with ids made of these values, differ."""
    tests = [TEST.format(name=name, values=text) for name, text in values.items()]
    (folder / "test_it.py").write_text(HEAD + "".join(tests))
    (folder / "pytest.ini").touch()
    found = "\n".join(differences([], folder))
    return [name for name in values if f"test_{name}[" in found]


def test_ids_that_depend_on_the_process_are_found(tmp_path: Path) -> None:
    """A time, a hash seed, an address and a temporary path; a constant is none of these."""
    wrong = differ(
        tmp_path,
        time="[gzip.compress(b'a')]",
        seed="[*enumerate({'a', 'b', 'c', 'd', 'e', 'f'})]",
        address="[object()]",
        path="[tempfile.gettempdir()]",
        constant="range(20)",
    )
    assert wrong == ["time", "seed", "address", "path"]


def test_what_cannot_be_collected_is_an_error(tmp_path: Path) -> None:
    """The error has pytest's own text."""
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        differ(tmp_path, wrong="[1 / 0]")
