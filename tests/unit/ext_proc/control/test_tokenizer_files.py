"""Tokenizers from files."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest
from structlog.testing import capture_logs
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, pre_tokenizers

from ext_proc.control import tokenizer_files
from ext_proc.control.tokenizer_files import MAX_TOKENIZERS, TokenizerError, TokenizerFiles, load
from ext_proc.routing.values.pool import Pool


class Fake:
    """A tokenizer without a file."""

    def encode(self, text):
        return [len(text)]


def pools(*paths):
    return {f"p{index}": Pool(f"p{index}", tokenizer=path) for index, path in enumerate(paths)}


@contextlib.asynccontextmanager
async def running(files):
    """Run the reader of files."""
    task = asyncio.create_task(files.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0)


@pytest.fixture
def vocabulary(tmp_path):
    """A tokenizer file of three words, which asks for padding and truncation."""
    made = HuggingFace(models.WordLevel({"low": 0, "tide": 1, "?": 2}, "?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.enable_padding(length=9)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    return path


def test_load(vocabulary):
    """A file's tokenizer gives the ids of the whole text, neither padded nor truncated."""
    assert load(str(vocabulary)).encode("low tide now low") == [0, 1, 2, 0]


def test_a_text_that_fails(tmp_path):
    """A text on which the tokenizer raises has no ids."""
    made = HuggingFace(models.WordLevel({"low": 0}, "missing"))
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    assert load(str(path)).encode("tide") is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[]"])
def test_broken_file(tmp_path, content):
    """A file that is not a tokenizer is refused with the fix."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"put the model's tokenizer\.json there"):
        load(str(path))


def test_missing_file(tmp_path):
    """A missing file is refused with the fix."""
    with pytest.raises(TokenizerError, match=r"No such file.*put the model's"):
        load(str(tmp_path / "none.json"))


def test_large_file(vocabulary, monkeypatch):
    """A file above the bound is not read."""
    monkeypatch.setattr(tokenizer_files, "MAX_FILE_BYTES", 10)
    with pytest.raises(TokenizerError, match="at most 10 are read"):
        load(str(vocabulary))


def test_missing_package(vocabulary, monkeypatch):
    """Without the package the fix is its extra."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizerError, match=r"install tidegate\[tokenizers\]"):
        load(str(vocabulary))


async def test_read_once_per_path():
    """Two pools may share a file, which is read once however often pools change."""
    read = []

    def reader(path):
        read.append(path)
        return Fake()

    files = TokenizerFiles(reader)
    async with running(files):
        files.set_pools(pools("/a", "/a", ""))
        await until(lambda: "/a" in files.ready)
        files.set_pools(pools("/a", "/a"))
        files.set_pools(pools("/a", "/b"))
        await until(lambda: "/b" in files.ready)
    assert read == ["/a", "/b"]


async def test_forgotten():
    """A file that no pool names is dropped."""
    files = TokenizerFiles(lambda _: Fake())
    async with running(files):
        files.set_pools(pools("/a"))
        await until(lambda: "/a" in files.ready)
        files.set_pools(pools("/b"))
        await until(lambda: "/b" in files.ready)
    assert set(files.ready) == {"/b"}


async def test_a_failure_is_one_line_and_changes_nothing_else(tmp_path, vocabulary):
    """A broken file is logged once with its pool; the others are read."""
    missing = str(tmp_path / "none.json")
    files = TokenizerFiles()
    with capture_logs() as lines:
        async with running(files):
            files.set_pools(pools(missing, str(vocabulary)))
            await until(lambda: files.ready)
            files.set_pools(pools(missing, str(vocabulary)))
    assert set(files.ready) == {str(vocabulary)}
    (line,) = [line for line in lines if line["event"] == "tokenizer_not_loaded"]
    assert (line["pool"], line["path"]) == ("p0", missing)
    assert "put the model's tokenizer.json there" in line["reason"]


async def test_bound():
    """One file beyond the bound is not read, and this is logged."""
    files = TokenizerFiles(lambda _: Fake())
    with capture_logs() as lines:
        async with running(files):
            files.set_pools(pools(*(f"/{number}" for number in range(MAX_TOKENIZERS + 1))))
            await until(lambda: [line for line in lines if "reason" in line])
    assert len(files.ready) == MAX_TOKENIZERS
    (line,) = [line for line in lines if "reason" in line]
    assert "let pools share" in line["reason"]


async def test_dropped_while_it_was_read():
    """A file that no pool names any longer when it has been read is not kept."""
    files = TokenizerFiles()

    def reader(path):
        if path == "/a":
            files.set_pools(pools("/b"))
        return Fake()

    files._read = reader
    async with running(files):
        files.set_pools(pools("/a"))
        await until(lambda: files.ready)
    assert set(files.ready) == {"/b"}
