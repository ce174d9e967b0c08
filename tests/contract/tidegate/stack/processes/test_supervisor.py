"""The supervisor, with real child processes."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tidegate.stack.processes.supervisor import (
    MOST_CRASHES,
    TAIL_LINES,
    Supervisor,
    first_crash,
    read_tail,
)

SLEEPER = ("/bin/sleep", "60")
ENV = dict(os.environ)


def python(code: str) -> tuple[str, ...]:
    """Return a command that runs this Python code."""
    return (sys.executable, "-S", "-c", code)


@pytest.fixture
async def supervisor(tmp_path):
    """Return a supervisor whose children end with the test."""
    subject = Supervisor(tmp_path)
    yield subject
    await subject.stop(grace_s=1)


def exists(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def until(condition) -> None:
    """Wait for an effect of another process."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no event to wait for across processes
            await asyncio.sleep(0.005)


async def test_output_goes_to_the_childs_log(supervisor):
    """Both output streams are in one file."""
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
    await supervisor.start("one", python(code), ENV)
    await supervisor.crashed()
    assert supervisor.log("one").read_text() == "out\nerr\n"


async def test_a_child_gets_exactly_its_environment(supervisor):
    """A child gets only the given environment."""
    await supervisor.start("one", ("/usr/bin/env",), {"LC_ALL": "C", "ONLY": "this"})
    await supervisor.crashed()
    assert supervisor.log("one").read_text() == "LC_ALL=C\nONLY=this\n"


async def test_an_unexpected_exit_is_a_crash(supervisor):
    """The crash names the child, its exit code, its log and the log's end."""
    code = "print('the reason'); raise SystemExit(3)"
    await supervisor.start("one", python(code), ENV)
    crash = await supervisor.crashed()
    assert (crash.name, crash.code, crash.tail) == ("one", 3, "the reason")
    text = str(crash)
    assert "one exited with 3" in text
    assert str(supervisor.log("one")) in text


async def test_a_crash_by_signal_is_reported(supervisor):
    """A crash by a signal names the signal."""
    await supervisor.start("one", SLEEPER, ENV)
    os.kill(supervisor.pid("one"), signal.SIGSEGV)
    assert "was killed by signal 11" in str(await supervisor.crashed())


async def test_a_program_that_does_not_exist_is_a_crash(supervisor):
    """A program that does not exist is a crash; the log names it."""
    await supervisor.start("one", ("/nowhere/program",), ENV)
    assert "FileNotFoundError" in (await supervisor.crashed()).tail


async def test_a_kill_is_no_crash(supervisor):
    """A kill through the supervisor is not a crash."""
    await supervisor.start("one", SLEEPER, ENV)
    await supervisor.kill("one")
    assert not supervisor.running("one")
    assert supervisor.crash is None


async def test_a_kill_takes_the_whole_group(supervisor):
    """Grandchildren end with the child."""
    code = (
        "import subprocess, time; "
        "print(subprocess.Popen(['/bin/sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    await supervisor.start("one", python(code), ENV)
    await until(lambda: supervisor.log("one").read_text().endswith("\n"))
    grandchild = int(supervisor.log("one").read_text())
    assert exists(grandchild)
    await supervisor.kill("one")
    await until(lambda: not exists(grandchild))


async def test_killing_what_has_ended_is_harmless(supervisor):
    """A second kill changes nothing."""
    await supervisor.start("one", SLEEPER, ENV)
    await supervisor.kill("one")
    await supervisor.kill("one")


async def test_a_restart_is_a_new_process_with_the_same_command(supervisor):
    """A restart appends to the log and is not a crash."""
    await supervisor.start(
        "one", python("print('up', flush=True); import time; time.sleep(60)"), ENV
    )
    await until(lambda: supervisor.log("one").read_text() == "up\n")
    first = supervisor.pid("one")
    await supervisor.restart("one")
    await until(lambda: supervisor.log("one").read_text() == "up\nup\n")
    assert supervisor.pid("one") != first
    assert supervisor.crash is None


async def test_a_killed_child_can_be_restarted(supervisor):
    """A killed child can be started again."""
    await supervisor.start("one", SLEEPER, ENV)
    await supervisor.kill("one")
    await supervisor.restart("one")
    assert supervisor.running("one")


async def test_a_crash_after_a_restart_counts_again(supervisor):
    """A crash after a restart is reported."""
    await supervisor.start("one", SLEEPER, ENV)
    await supervisor.restart("one")
    os.kill(supervisor.pid("one"), signal.SIGKILL)
    assert (await supervisor.crashed()).code == -9


async def test_a_name_is_used_once(supervisor):
    """Starting a running child raises and leaves it running."""
    await supervisor.start("one", SLEEPER, ENV)
    with pytest.raises(ValueError, match="one is running already"):
        await supervisor.start("one", SLEEPER, ENV)
    assert supervisor.running("one")


async def test_an_unknown_name_raises(supervisor):
    """Killing an unknown name raises."""
    with pytest.raises(KeyError):
        await supervisor.kill("absent")


async def test_stop_ends_all(supervisor):
    """A child that handles SIGTERM ends by SIGTERM."""
    for name in ("one", "two"):
        await supervisor.start(name, SLEEPER, ENV)
    await supervisor.stop()
    assert not supervisor.running("one")
    assert not supervisor.running("two")
    assert supervisor.crash is None


async def test_stop_kills_children_that_ignore_sigterm(supervisor):
    """SIGKILL follows after the grace period."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(60)"
    )
    await supervisor.start("one", python(code), ENV)
    await until(lambda: supervisor.log("one").read_text() == "deaf\n")
    await supervisor.stop(grace_s=0.05)
    assert not supervisor.running("one")


async def test_each_exit_is_notified(tmp_path):
    """``on_exit`` is called after each exit, expected or not."""
    exits = []
    subject = Supervisor(tmp_path, on_exit=exits.append)
    await subject.start("one", SLEEPER, ENV)
    await subject.kill("one")
    await subject.start("two", ("/bin/true",), ENV)
    await subject.crashed()
    assert exits == ["one", "two"]
    await subject.stop()


async def test_a_kept_child_is_started_again(tmp_path):
    """Its exit is told, the new process has the same command, and nothing counts as a crash."""
    subject, told = Supervisor(tmp_path), []
    await subject.start("one", SLEEPER, ENV)
    subject.keep_running(told.append)
    before = subject.pid("one")
    os.kill(before, signal.SIGKILL)
    await until(lambda: subject.pid("one") != before)
    assert [(crash.name, crash.code) for crash in told] == [("one", -9)]
    assert subject.running("one")
    assert subject.crash is None
    await subject.stop()


@pytest.mark.parametrize(("word", "restarts"), [("known", 1), ("else", 0)])
async def test_a_child_may_be_kept_after_some_exits_only(tmp_path, word, restarts):
    """By the end of its log; any other exit is a crash."""
    subject, told = Supervisor(tmp_path), []
    subject.keep_running(told.append, lambda crash: "known" in crash.tail)
    ended = tmp_path / "ended"
    code = f"""
import pathlib, time
if (ended := pathlib.Path({str(ended)!r})).exists():
    time.sleep(60)
ended.touch()
raise SystemExit({word!r})
"""
    await subject.start("one", python(code), ENV)
    await until(lambda: told or subject.crash)
    assert (len(told), subject.crash is None) == (restarts, bool(restarts))
    await until(lambda: subject.running("one") is bool(restarts))
    await subject.stop()


async def test_a_kept_child_that_keeps_failing_is_given_up(tmp_path, monkeypatch):
    """The exit after which it is not started again is the crash."""
    monkeypatch.setattr("tidegate.stack.processes.supervisor.FIRST_DELAY_S", 0.0)
    subject, told = Supervisor(tmp_path), []
    subject.keep_running(told.append)
    await subject.start("one", python("raise SystemExit(3)"), ENV)
    crash = await subject.crashed()
    assert (crash.name, crash.code, len(told)) == ("one", 3, MOST_CRASHES - 1)
    await subject.stop()


async def test_a_stop_ends_the_wait_for_a_kept_child(tmp_path):
    """A child that exited just before the end is not started again."""
    subject, told = Supervisor(tmp_path), asyncio.Event()
    subject.keep_running(lambda _: told.set())
    await subject.start("one", ("/bin/true",), ENV)
    await told.wait()
    await subject.stop()
    assert not subject.running("one")


async def test_nothing_survives_the_supervising_process(tmp_path):
    """The children of a killed supervisor end."""
    code = f"""
import asyncio, os, pathlib
from tidegate.stack.processes.supervisor import Supervisor
async def main():
    subject = Supervisor(pathlib.Path({str(tmp_path)!r}))
    await subject.start("child", ("/bin/sleep", "60"), dict(os.environ))
    print(subject.pid("child"), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    await until(lambda: "sleep" in Path(f"/proc/{child}/cmdline").read_text())
    process.kill()
    await process.communicate()
    await until(lambda: not exists(child))


async def test_a_group_ends_with_its_leader(tmp_path):
    """Grandchildren end when their parent is killed by another process."""
    shell = "/bin/sleep 60 & echo $! ; wait"
    code = f"""
import asyncio, os, pathlib
from tidegate.stack.processes.supervisor import Supervisor
async def main():
    subject = Supervisor(pathlib.Path({str(tmp_path)!r}))
    await subject.start("child", ("/bin/sh", "-c", {shell!r}), dict(os.environ), group=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    log = tmp_path / "child.log"
    await until(lambda: log.exists() and log.read_text().endswith("\n"))
    grandchild = int(log.read_text())
    assert exists(grandchild)
    process.kill()
    await process.wait()
    await until(lambda: not exists(grandchild))


async def test_the_first_crash_of_several_supervisors_is_found(tmp_path):
    """The first crash of several supervisors is returned."""
    one, two = Supervisor(tmp_path), Supervisor(tmp_path)
    await one.start("calm", SLEEPER, ENV)
    await two.start("wild", ("/bin/false",), ENV)
    crash = await first_crash((one, two))
    await one.stop()
    assert (crash.name, crash.code) == ("wild", 1)


def test_a_log_tail_is_bounded(tmp_path):
    """The end of a log is bounded in lines and bytes."""
    log = tmp_path / "x.log"
    log.write_text("".join(f"{'y' * 2000} {line}\n" for line in range(500)))
    tail = read_tail(log)
    assert tail.endswith(" 499")
    assert len(tail.splitlines()) <= TAIL_LINES
    assert len(tail) <= 16_384


def test_a_missing_log_has_no_tail(tmp_path):
    """A missing log has an empty tail."""
    assert read_tail(tmp_path / "none.log") == ""
