"""Run folders."""

import os
import stat
from pathlib import Path

import pytest

from tidegate.stack import runfolder
from tidegate.stack.runfolder import KEEP, RunFolder, default_parent, is_live


def test_a_run_folder_is_fresh_and_private(tmp_path):
    """A run folder is new and has mode 0700."""
    with RunFolder.create(tmp_path / "runs") as first, RunFolder.create(tmp_path / "runs") as other:
        assert first.path != other.path
        assert first.logs.is_dir()
        assert stat.S_IMODE(first.path.parent.stat().st_mode) == 0o700


def test_a_parent_with_a_space_is_refused(tmp_path):
    """A parent path with a space is an error."""
    with pytest.raises(ValueError, match="has a space"):
        RunFolder.create(tmp_path / "my runs")


def test_a_temporary_directory_with_a_space_is_avoided(monkeypatch):
    """If TMPDIR contains a space, the default is below /tmp."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/somewhere/my temp")
    assert default_parent() == Path("/", "tmp", f"tidegate-{os.getuid()}")


def test_the_default_lies_in_the_temporary_directory(monkeypatch):
    """TMPDIR is honoured."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/srv/temp")
    assert default_parent() == Path(f"/srv/temp/tidegate-{os.getuid()}")


def test_a_parent_of_someone_else_is_refused(tmp_path, monkeypatch):
    """A parent folder of another user is an error."""
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        RunFolder.create(tmp_path / "runs")


def test_a_parent_that_is_a_link_is_refused(tmp_path):
    """A parent that is a link is an error."""
    (tmp_path / "target").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "target")
    with pytest.raises(PermissionError):
        RunFolder.create(tmp_path / "runs")


def test_a_link_reaches_a_path_with_a_space(tmp_path):
    """A link gives a path without a space."""
    target = tmp_path / "my models"
    target.mkdir()
    (target / "file").write_text("x")
    with RunFolder.create(tmp_path / "runs") as run:
        link = run.link("a/b", target)
        assert " " not in str(link)
        assert (link / "file").read_text() == "x"


def test_a_written_file_replaces_the_old_one_whole(tmp_path):
    """A write is atomic and leaves no temporary file."""
    with RunFolder.create(tmp_path / "runs") as run:
        run.write("fleet.yaml", "old")
        path = run.write("fleet.yaml", "new")
        assert path.read_text() == "new"
        assert sorted(entry.name for entry in run.path.iterdir()) == [".lock", "fleet.yaml", "logs"]


def test_old_run_folders_go(tmp_path):
    """At most KEEP folders stay, the newest."""
    folders = []
    for number in range(KEEP + 3):
        with RunFolder.create(tmp_path / "runs") as run:
            folders.append(run.path)
        os.utime(run.path, (number, number))
    assert sorted((tmp_path / "runs").iterdir()) == sorted(folders[-KEEP:])


def test_a_folder_that_is_just_removed_is_no_error(tmp_path):
    """Another run may remove the same old folder; a dangling link simulates it."""
    (tmp_path / "runs").mkdir(mode=0o700)
    (tmp_path / "runs" / "run-1").symlink_to(tmp_path / "gone")
    RunFolder.create(tmp_path / "runs").close()


def test_a_living_run_keeps_its_folder(tmp_path):
    """The folder of a running stack is not removed."""
    with RunFolder.create(tmp_path / "runs") as living:
        os.utime(living.path, (0, 0))
        for _ in range(KEEP + 2):
            RunFolder.create(tmp_path / "runs").close()
        assert living.path.is_dir()


def test_a_run_lives_until_it_is_closed(tmp_path):
    """A run is live while it holds its lock; a missing folder is not live."""
    run = RunFolder.create(tmp_path / "runs")
    assert is_live(run.path)
    run.close()
    run.close()
    assert not is_live(run.path)
    assert not is_live(tmp_path / "nowhere")


def test_the_bound_is_small():
    """``KEEP`` is small."""
    assert runfolder.KEEP <= 10
