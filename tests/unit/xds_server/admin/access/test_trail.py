"""The record of calls, on disks of every kind."""

from __future__ import annotations

import asyncio
import errno
import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tidegate_api.admin.v1 import admin_pb2
from xds_server.admin.access import trail as module
from xds_server.admin.access.caller import Caller
from xds_server.admin.access.trail import (
    CHANGES_NAME,
    KEPT,
    MAX_ENTRIES,
    MAX_HELD,
    MAX_LINE_CHARS,
    OTHERS_NAME,
    AuditFile,
    AuditTrail,
    CallRecord,
    arguments_of,
)

ANN = Caller("ipv4:10.0.0.7:5", "ann", "token", frozenset({"operator"}))


def record(call: str = "SetWeights", *, changes: bool = True, **arguments) -> CallRecord:
    """Return the record of a call."""
    return CallRecord(1_700_000_000_123, ANN, call, "OK", 1.25, arguments, 7, changes)


def lines(folder: Path, name: str = CHANGES_NAME) -> list[dict]:
    """Return the lines of a file."""
    return [json.loads(each) for each in (folder / name).read_text().splitlines()]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch):
    """Return a switch that fills the disk: writes take half of a line, then nothing."""
    real, state = module.os.write, {"full": False}

    def write(file: int, data) -> int:
        if not state["full"]:
            return real(file, data)
        if len(data) > 40:
            return real(file, bytes(data[:20]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", write)
    return state


async def test_a_call_leaves_a_line(tmp_path: Path) -> None:
    """Who, with which role, what, and how it ended; nobody else may read it."""
    trail = AuditTrail(tmp_path)
    trail.add(record(pool="llm"))
    await trail.settle()
    assert lines(tmp_path) == [
        {
            "at": "2023-11-14T22:13:20.123Z",
            "peer": "ipv4:10.0.0.7:5",
            "identity": "ann",
            "by": "token",
            "role": "operator",
            "call": "SetWeights",
            "arguments": {"pool": "llm"},
            "verdict": "OK",
            "ms": 1.2,
            "revision": 7,
        }
    ]
    assert stat.S_IMODE((tmp_path / CHANGES_NAME).stat().st_mode) == 0o600


async def test_reading_does_not_displace_changes(tmp_path: Path) -> None:
    """Many calls that change nothing have a file of their own, and rotate alone."""
    trail = AuditTrail(tmp_path, max_bytes=1000)
    trail.add(record())
    for _ in range(50):
        trail.add(record("GetStatus", changes=False))
        await trail.settle()
    assert len(lines(tmp_path)) == 1
    assert (tmp_path / f"{OTHERS_NAME}.{KEPT}").exists()
    assert not (tmp_path / f"{OTHERS_NAME}.{KEPT + 1}").exists()


async def test_a_restart_goes_on_with_the_file(tmp_path: Path) -> None:
    """Also where the end of the process has cut a line."""
    for number in range(2):
        trail = AuditTrail(tmp_path)
        trail.add(record(revision=number))
        await trail.settle()
        await trail.stop()
        if not number:
            with (tmp_path / CHANGES_NAME).open("a") as file:
                file.write('{"at":"20')
    first, cut, second = (tmp_path / CHANGES_NAME).read_text().splitlines()
    assert [json.loads(each)["arguments"] for each in (first, second)] == [
        {"revision": 0},
        {"revision": 1},
    ]
    assert cut == '{"at":"20'


def test_files_are_bounded(tmp_path: Path) -> None:
    """In size and number; the newest lines stay."""
    file = AuditFile(tmp_path / "a", max_bytes=100)
    for number in range(40):
        file.append([str(number).zfill(50)])
    found = sorted(each.name for each in tmp_path.iterdir())
    assert found == [f"a.{number}" for number in range(1, KEPT + 1)]
    assert (tmp_path / "a.1").read_text().split() == ["38".zfill(50), "39".zfill(50)]
    assert all(each.stat().st_size <= 102 for each in tmp_path.iterdir())


async def test_a_full_disk_keeps_no_call_from_being_made(tmp_path: Path, full: dict) -> None:
    """It is said once, lines are held, and written when there is space, each on a line."""
    trail = AuditTrail(tmp_path)
    full["full"] = True
    with capture_logs() as logs:
        for number in range(3):
            trail.add(record(number=number))
            async with asyncio.timeout(module.PATIENCE_S / 2):
                await trail.settle()
    assert [each["event"] for each in logs] == ["audit_not_written"]
    assert "No space left" in trail.fault
    assert trail.unwritten == 3
    full["full"] = False
    with capture_logs() as logs:
        await trail.stop()
    assert [each["event"] for each in logs] == ["audit_written_again"]
    assert (trail.fault, trail.unwritten) == ("", 0)
    cut, *whole = (tmp_path / CHANGES_NAME).read_text().splitlines()
    assert [json.loads(each)["arguments"]["number"] for each in whole] == [0, 1, 2]
    assert not cut.endswith("}")


async def test_lines_that_are_held_are_bounded(tmp_path: Path, full: dict) -> None:
    """The oldest are lost, which a line of its own says."""
    trail = AuditTrail(tmp_path)
    full["full"] = True
    for number in range(MAX_HELD + 5):
        trail.add(record(number=number))
    assert trail.unwritten == MAX_HELD + 5
    full["full"] = False
    await trail.stop()
    lost, *kept = lines(tmp_path)
    assert lost == {"lost": 5}
    assert [kept[0]["arguments"]["number"], len(kept)] == [5, MAX_HELD]
    assert trail.unwritten == 0


async def test_a_disk_that_hangs_holds_a_call_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No longer than the patience, and the line comes once."""
    go = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = AuditFile.append

    def slow(self: AuditFile, given: list[str]) -> None:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(10)
        real(self, given)

    monkeypatch.setattr(AuditFile, "append", slow)
    trail = AuditTrail(tmp_path, patience_s=0.05)
    trail.add(record())
    await trail.settle()
    assert not (tmp_path / CHANGES_NAME).exists()
    go.set()
    await trail.stop()
    assert len(lines(tmp_path)) == 1


async def test_without_a_folder_lines_are_in_the_log() -> None:
    """Changes at a level that is shown, all others below it."""
    trail = AuditTrail(None)
    with capture_logs() as logs:
        trail.add(record())
        trail.add(record("GetStatus", changes=False))
        await trail.settle()
    assert [(each["event"], each["log_level"], each["call"]) for each in logs] == [
        ("admin_call", "info", "SetWeights"),
        ("admin_call", "debug", "GetStatus"),
    ]


async def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Who may write in the folder must not choose which file grows."""
    (tmp_path / CHANGES_NAME).symlink_to(tmp_path / "victim")
    trail = AuditTrail(tmp_path)
    trail.add(record())
    await trail.settle()
    assert trail.fault
    assert not (tmp_path / "victim").exists()
    await trail.stop()


def test_of_arguments_a_line_tells_what_is_no_secret() -> None:
    """A fleet may contain one, and so may any text; names of pools and replicas are none."""
    options = admin_pb2.ChangeOptions(author="a", reason="planted-secret", dry_run=True)
    apply = admin_pb2.ApplyRequest(fleet="planted-secret", source="f.yaml", options=options)
    told = arguments_of(apply)
    assert told["source"] == "6 characters"
    assert told["dry_run"] is True
    assert told["fleet"].startswith("14 characters, sha256 ")
    assert "planted" not in str(told)
    weights = {f"v{number}": number for number in range(MAX_ENTRIES + 9)}
    set_weights = admin_pb2.SetWeightsRequest(pool="p" * 999, weights=weights)
    assert len(arguments_of(set_weights)["weights"]) == MAX_ENTRIES
    assert len(arguments_of(set_weights)["pool"]) < 300


@given(st.text(), st.dictionaries(st.text(max_size=99), st.text(max_size=999), max_size=9))
def test_a_record_is_one_line_of_bounded_length(name: str, arguments: dict[str, str]) -> None:
    """Whatever a caller sends."""
    caller = Caller(name, name, "nobody")
    line = CallRecord(0, caller, name, "OK", 0.0, arguments).line()
    assert "\n" not in line
    assert len(line) <= 2 * MAX_LINE_CHARS
    assert json.loads(line)["verdict"] == "OK"
