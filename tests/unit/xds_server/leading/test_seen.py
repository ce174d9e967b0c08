"""What a server has read of a shared history, for when it starts again."""

from __future__ import annotations

from structlog.testing import capture_logs

from xds_server.fleet.stored.epochs import HistoryMark
from xds_server.leading.seen import FILE_NAME, SeenFile


def test_a_mark_outlives_the_process(tmp_path) -> None:
    """In a folder that the first one makes."""
    folder = tmp_path / "state"
    assert SeenFile(folder).read() == HistoryMark()
    SeenFile(folder).write(HistoryMark(3, 17))
    assert SeenFile(folder).read() == HistoryMark(3, 17)


def test_a_file_that_cannot_be_used_is_told_once(tmp_path) -> None:
    """It ends no server: the history is as it was."""
    (tmp_path / FILE_NAME).write_text("[]")
    (tmp_path / "file").touch()
    lost = SeenFile(tmp_path / "file")
    with capture_logs() as told:
        assert SeenFile(tmp_path).read() == HistoryMark()
        for number in range(2):
            lost.write(HistoryMark(1, number))
    assert [each["event"] for each in told] == ["seen_not_read", "seen_not_written"]
