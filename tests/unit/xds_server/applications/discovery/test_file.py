"""The watch of the fleet file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xds_server.applications.discovery import file as watched
from xds_server.applications.discovery.file import FileFault, FileWatch, read_text


class Watcher:
    """A watch that records its reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: list[str] = []
        self.faults: list[str] = []
        self.watch = FileWatch(path, self._take, self.faults.append)

    async def _take(self, text: str) -> None:
        self.texts.append(text)

    async def looks(self, count: int = 2) -> None:
        """Poll this often."""
        for _ in range(count):
            await self.watch.look()


@pytest.fixture
def watcher(tmp_path: Path) -> Watcher:
    """Return a watch of a file that does not exist yet."""
    return Watcher(tmp_path / "fleet.yaml")


async def test_a_text_is_reported_once(watcher: Watcher) -> None:
    """However often the file is polled."""
    watcher.path.write_text("a")
    await watcher.looks(5)
    assert watcher.texts == ["a"]


async def test_a_known_text_is_not_reported(watcher: Watcher) -> None:
    """The text with which the server started is not reported."""
    watcher.path.write_text("a")
    watcher.watch.known("a")
    await watcher.looks(3)
    assert watcher.texts == []


async def test_a_file_that_is_being_written_is_not_read(watcher: Watcher) -> None:
    """The file is read only after two polls with the same stamp."""
    for part in ("a", "ab", "abc"):
        watcher.path.write_text(part)
        await watcher.looks(1)
    assert watcher.texts == []
    await watcher.looks(1)
    assert watcher.texts == ["abc"]


async def test_a_replaced_file_is_followed(watcher: Watcher) -> None:
    """Editors write a new file and rename it over the old one."""
    watcher.path.write_text("a")
    await watcher.looks()
    other = watcher.path.with_suffix(".new")
    other.write_text("b")
    other.replace(watcher.path)
    await watcher.looks()
    assert watcher.texts == ["a", "b"]


async def test_the_same_text_again_is_no_change(watcher: Watcher) -> None:
    """A touched file is read, but not reported."""
    watcher.path.write_text("a")
    await watcher.looks()
    os.utime(watcher.path, (1, 1))
    await watcher.looks()
    assert watcher.texts == ["a"]


async def test_a_missing_file_is_reported_once(watcher: Watcher) -> None:
    """The running fleet stays; the fault is reported."""
    await watcher.looks(4)
    assert len(watcher.faults) == 1
    assert "no such file" in watcher.faults[0]


async def test_a_file_that_reappears_is_reported(watcher: Watcher) -> None:
    """Also with the previous text, because it ends the fault."""
    watcher.path.write_text("a")
    await watcher.looks()
    watcher.path.unlink()
    await watcher.looks()
    watcher.path.write_text("a")
    await watcher.looks()
    watcher.path.unlink()
    await watcher.looks()
    assert watcher.texts == ["a", "a"]
    assert len(watcher.faults) == 2


async def test_a_file_that_changes_while_it_is_read_waits(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that may be half old, half new is not reported."""
    watcher.path.write_text("a")
    await watcher.looks(1)

    def read_slowly(path: Path) -> str:
        path.write_text("longer")
        return "lon"

    with monkeypatch.context() as patch:
        patch.setattr(watched, "read_text", read_slowly)
        await watcher.looks(1)
    assert watcher.texts == []
    await watcher.looks(2)
    assert watcher.texts == ["longer"]


def test_a_text_is_utf_8(tmp_path: Path) -> None:
    """The error names the first invalid byte; a byte order mark is not part of the text."""
    path = tmp_path / "f"
    path.write_bytes(b"ab\xff")
    with pytest.raises(FileFault, match="byte 2 is not UTF-8"):
        read_text(path)
    path.write_bytes("\ufeffa".encode())
    assert read_text(path) == "a"


def test_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound it is read, above it is not."""
    monkeypatch.setattr(watched, "MAX_BYTES", 4)
    path = tmp_path / "f"
    path.write_text("abcd")
    assert read_text(path) == "abcd"
    path.write_text("abcde")
    with pytest.raises(FileFault, match="larger than"):
        read_text(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """The error contains the system's reason."""
    with pytest.raises(FileFault, match="cannot be read"):
        read_text(tmp_path)
