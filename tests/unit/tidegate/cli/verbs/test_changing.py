"""Verbs that change the fleet."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import grpc
import pytest

from tidegate.cli import options
from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import FakeAdmin, Run


def test_a_change_says_what_it_did(run: Run, admin: FakeAdmin) -> None:
    """Changes, channels, acknowledgements and elapsed time are printed."""
    ran = run("weight", "llm", "canary=10", "--reason", "try", "--server", admin.address)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "revision 8:",
        "  pool llm: variant canary weight 5 -> 10",
        "sent over RDS, POOL",
        "acknowledged by 2 of 2 clients in 21 ms",
    ]
    (request,) = admin.requests
    assert request.weights == {"canary": 10}
    assert request.options.reason == "try"
    assert request.options.wait
    assert request.options.timeout_seconds == 30


def test_the_author_is_the_user_of_the_shell(
    run: Run, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``--author``, the author is the OS user, or ``unknown`` if that has no name."""
    monkeypatch.setattr(options.getpass, "getuser", lambda: "grace")
    run("undrain", "r1", "--server", admin.address)

    def nameless() -> str:
        raise KeyError(4711)

    monkeypatch.setattr(options.getpass, "getuser", nameless)
    run("undrain", "r1", "--server", admin.address)
    run("undrain", "r1", "--author", "ada", "--server", admin.address)
    assert [one.options.author for one in admin.requests] == ["grace", "unknown", "ada"]


@pytest.mark.parametrize(("verb", "draining"), [("drain", True), ("undrain", False)])
def test_drain_and_undrain(run: Run, admin: FakeAdmin, verb: str, draining: bool) -> None:
    """Both verbs send the endpoint and the value of ``draining``."""
    assert run(verb, "llm/r1", "--timeout", "5", "--server", admin.address).code == 0
    (request,) = admin.requests
    assert (request.endpoint, request.draining) == ("llm/r1", draining)
    assert request.options.timeout_seconds == 5


def test_rollback_names_the_revision(run: Run, admin: FakeAdmin) -> None:
    """The request contains the number of the revision."""
    run("rollback", "5", "--no-wait", "--server", admin.address)
    (request,) = admin.requests
    assert request.revision == 5
    assert not request.options.wait


def test_apply_sends_the_files_text(run: Run, admin: FakeAdmin, tmp_path: Path) -> None:
    """The request contains the text and the file name, which error messages quote."""
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: []\n")
    assert run("apply", "-f", str(file), "--server", admin.address).code == 0
    (request,) = admin.requests
    assert (request.fleet, request.source) == ("pools: []\n", str(file))


def test_apply_reads_stdin(run: Run, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-f -`` reads the fleet from stdin."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"pools: []")))
    run("apply", "-f", "-", "--server", admin.address)
    assert admin.requests[0].source == "<stdin>"


def test_apply_without_a_file_is_one_sentence(run: Run, tmp_path: Path) -> None:
    """The error names the missing file."""
    ran = run("apply", "-f", str(tmp_path / "none.yaml"))
    assert ran.code == 1
    assert "none.yaml: No such file" in ran.err


def test_a_dry_run_changes_nothing_and_does_not_wait(run: Run, admin: FakeAdmin) -> None:
    """A dry run prints the changes and does not wait for acknowledgements."""
    ran = run("weight", "llm", "canary=10", "--dry-run", "--server", admin.address)
    assert ran.code == 0
    assert "nothing was changed" in ran.out
    assert "acknowledged" not in ran.out
    (request,) = admin.requests
    assert request.options.dry_run
    assert not request.options.wait


def test_without_waiting_it_says_so(run: Run, admin: FakeAdmin) -> None:
    """With ``--no-wait`` the output names ``tidegate status``."""
    ran = run("weight", "llm", "canary=10", "--no-wait", "--server", admin.address)
    assert ran.code == 0
    assert "did not wait for clients" in ran.out


def test_nothing_to_change_is_no_failure(run: Run, admin: FakeAdmin) -> None:
    """A change without effect exits with 0 and reports the revision in force."""
    admin.result = api.ChangeResult(revision=7)
    ran = run("weight", "llm", "canary=5", "--server", admin.address)
    assert ran.code == 0
    assert "nothing to change; revision 7" in ran.out


def test_without_clients_the_change_is_kept(run: Run, admin: FakeAdmin) -> None:
    """Without connected clients the change succeeds."""
    admin.result = api.ChangeResult(revision=8, changes=["x"])
    ran = run("drain", "r1", "--server", admin.address)
    assert ran.code == 0
    assert "no client is connected" in ran.out


def test_a_rejection_is_a_failure_in_the_clients_words(run: Run, admin: FakeAdmin) -> None:
    """A rejection exits with 1 and prints the client's message and the next step."""
    admin.result.acked = 1
    admin.result.problems.add(client="envoy-1", state="NACKED", type="RDS", message="bad regex")
    ran = run("weight", "llm", "canary=10", "--server", admin.address)
    assert ran.code == 1
    assert "envoy-1: RDS NACKED: bad regex" in ran.out
    assert "tidegate rollback" in ran.err


def test_a_late_acknowledgement_is_a_failure(run: Run, admin: FakeAdmin) -> None:
    """A change that is not acknowledged within the timeout exits with 1."""
    admin.result.acked = 1
    admin.result.ClearField("elapsed_ms")
    ran = run("drain", "r1", "--timeout", "1", "--server", admin.address)
    assert ran.code == 1
    assert "1 of 2 clients have acknowledged revision 8 after 1 s" in ran.err


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.NOT_FOUND, "no pool 'lm'; did you mean 'llm'?"),
        (grpc.StatusCode.INVALID_ARGUMENT, "weights sum to 0"),
        (grpc.StatusCode.ABORTED, "revision 9 came between"),
        (grpc.StatusCode.UNIMPLEMENTED, "does not answer as a Tidegate control server"),
        (grpc.StatusCode.INTERNAL, "answered INTERNAL"),
    ],
)
def test_a_refusal_is_the_servers_sentence(
    run: Run, admin: FakeAdmin, code: grpc.StatusCode, text: str
) -> None:
    """The server's message is printed on stderr; stdout stays empty."""
    admin.error = (code, "" if code is grpc.StatusCode.INTERNAL else text)
    ran = run("weight", "lm", "canary=10", "--server", admin.address)
    assert ran.code == 1
    assert ran.out == ""
    assert text in ran.err


def test_a_change_can_be_read_by_programs(run: Run, admin: FakeAdmin) -> None:
    """``-o json`` prints the complete outcome."""
    ran = run("weight", "llm", "canary=10", "-o", "json", "--server", admin.address)
    answer = json.loads(ran.out)
    assert answer["elapsed_ms"] == 21.4
    assert answer["channels"] == ["RDS", "POOL"]
