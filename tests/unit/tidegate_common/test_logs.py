"""Logging of every process."""

from __future__ import annotations

import errno
import json
import sys

import pytest
import structlog

from tidegate_common import logs


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, with event, level, time and the pairs."""
    logs.configure("json")
    structlog.get_logger().info("revision_stored", revision=3)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["revision"]) == ("revision_stored", "info", 3)
    assert line["timestamp"].endswith("Z")


def test_the_console_has_no_colours_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A log file stays readable."""
    logs.configure("console")
    structlog.get_logger().warning("client_behind", client="envoy-1")
    text = capsys.readouterr().err
    assert "client_behind" in text
    assert "client=envoy-1" in text
    assert "\x1b" not in text


def test_events_below_the_level_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    """Events below the level are dropped."""
    logs.configure("json", "error")
    structlog.get_logger().info("anything")
    assert capsys.readouterr().err == ""


def test_errors_carry_their_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON as data."""
    logs.configure("json")
    structlog.get_logger().error("failed", exc_info=ValueError("boom"))
    line = json.loads(capsys.readouterr().err)
    assert line["exception"][0]["exc_value"] == "boom"


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_line_is_one_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log_format: logs.LogFormat
) -> None:
    """Processes that share stderr do not interleave their lines."""
    written: list[str] = []
    monkeypatch.setattr(sys.stderr, "write", written.append)
    logs.configure(log_format)
    structlog.get_logger().info("picker_started")
    assert len(written) == 1
    assert written[0].endswith("\n")
    assert capsys.readouterr().out == ""


def test_a_full_disk_under_the_log_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What logs goes on, such as a change that is stored; later lines are written again."""

    def full(_: str = "") -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    logs.configure("json")
    with monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "write", full)
        patch.setattr(sys.stderr, "flush", full)
        structlog.get_logger().info("revision_stored")
    structlog.get_logger().info("publication_settled")
    assert json.loads(capsys.readouterr().err)["event"] == "publication_settled"
