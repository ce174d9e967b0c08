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

    from support.command_line import FakeAdmin, Run


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


@pytest.mark.parametrize(("verb", "standby"), [("promote", False), ("demote", True)])
def test_promote_and_demote(run: Run, admin: FakeAdmin, verb: str, standby: bool) -> None:
    """Both verbs send the endpoint and the value of ``standby``."""
    assert run(verb, "llm/r1", "--server", admin.address).code == 0
    (request,) = admin.requests
    assert (request.endpoint, request.standby) == ("llm/r1", standby)


@pytest.mark.parametrize(
    "words",
    [
        ("demote", "r1"),
        ("drain", "r1"),
        ("weight", "llm", "canary=1"),
        ("rollback", "5"),
        ("apply", "-f", "FLEET"),
    ],
    ids=" ".join,
)
def test_force_is_asked_for(
    run: Run, admin: FakeAdmin, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """What can take the last usable replica does so only with ``--force``."""
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: []\n")
    given = [word.replace("FLEET", str(file)) for word in words]
    for more in ((), ("--force",)):
        assert run(*given, *more, "--server", admin.address).code == 0
    assert [each.options.force for each in admin.requests] == [False, True]


def test_a_change_may_name_the_revision_that_it_is_based_on(run: Run, admin: FakeAdmin) -> None:
    """Without it, any revision may be in force."""
    for more in ((), ("--based-on", "7")):
        assert run("undrain", "r1", *more, "--server", admin.address).code == 0
    assert [each.options.based_on for each in admin.requests] == [0, 7]


def test_a_printed_fleet_is_based_on_its_revision(
    run: Run, admin: FakeAdmin, tmp_path: Path
) -> None:
    """Unless another one is named; its first line says which."""
    file = tmp_path / "fleet.yaml"
    file.write_text(run("get", "fleet", "--server", admin.address).out)
    for more in ((), ("--based-on", "9")):
        assert run("apply", "-f", str(file), *more, "--server", admin.address).code == 0
    assert [each.options.based_on for each in admin.requests[-2:]] == [7, 9]


def test_what_a_rollback_keeps_is_printed(run: Run, admin: FakeAdmin) -> None:
    """Also where nothing else is to be done."""
    admin.result.kept.append("r1 drains on")
    assert "kept: r1 drains on" in run("rollback", "5", "--server", admin.address).out


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


def test_a_dry_run_tells_what_the_change_would_do(run: Run, admin: FakeAdmin) -> None:
    """Channels, connections, and what remains, before an operator decides."""
    preview = api.ChangePreview(
        channels=["EDS", "POOL"],
        drains=["listener.address"],
        warms=["llm/stable/grpc"],
        draining=[
            api.DrainingReplica(endpoint="r1", in_flight=3),
            api.DrainingReplica(endpoint="r2"),
        ],
        remaining=[
            api.RemainingCapacity(
                pool="llm",
                variant="stable",
                weight=90,
                weight_before=90,
                replicas=4,
                usable=2,
                usable_before=4,
                capacity=2,
                capacity_before=4,
            ),
            api.RemainingCapacity(
                pool="llm",
                variant="canary",
                weight=10,
                weight_before=10,
                replicas=1,
                usable=0,
                usable_before=1,
                capacity=0,
                capacity_before=1,
            ),
        ],
    )
    admin.result.preview.CopyFrom(preview)
    ran = run("drain", "r1", "--dry-run", "--server", admin.address)
    said = " ".join(ran.out.split())
    for part in (
        "it would be sent over EDS, POOL",
        (
            "open connections would drain, each closed once its answers are complete:"
            " listener.address changes"
        ),
        "new connections to the replicas of llm/stable/grpc",
        "r1 would get no new requests; in flight on it: 3",
        "r2 would get no new requests; in flight on it: an unknown number",
        "variant stable would have 2 of 4 replicas usable (now 4), weight 90, 50% of its capacity",
        (
            "canary would have 0 of 1 replicas usable (now 1), weight 10, 0% of its capacity: its"
            " requests would be refused"
        ),
    ):
        assert part in said
    as_json = run("drain", "r1", "--dry-run", "-o", "json", "--server", admin.address)
    told = json.loads(as_json.out)["preview"]
    assert told["draining"][1] == {"endpoint": "r2", "in_flight": None}
    assert told["remaining"][0]["capacity"] == 2.0


def test_a_dry_run_that_closes_nothing_says_so(run: Run, admin: FakeAdmin) -> None:
    """It is what an operator asks before a change in the middle of the day."""
    admin.result.preview.CopyFrom(api.ChangePreview(channels=["RTDS"]))
    ran = run("shed", "llm", "5", "--dry-run", "--server", admin.address)
    assert "no connection would be closed" in ran.out


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
    """A rejection exits with 5 and prints the client's message and the next step."""
    admin.result.acked = 1
    admin.result.problems.add(client="envoy-1", state="NACKED", type="RDS", message="bad regex")
    ran = run("weight", "llm", "canary=10", "--server", admin.address)
    assert ran.code == 5
    assert "envoy-1: RDS NACKED: bad regex" in ran.out
    assert "tidegate rollback" in ran.err


def test_a_late_acknowledgement_is_a_failure(run: Run, admin: FakeAdmin) -> None:
    """A change that is not acknowledged within the timeout exits with 4."""
    admin.result.acked = 1
    admin.result.ClearField("elapsed_ms")
    ran = run("drain", "r1", "--timeout", "1", "--server", admin.address)
    assert ran.code == 4
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


def test_an_abandoned_change_is_a_rejection(run: Run, admin: FakeAdmin) -> None:
    """Scripts tell it from a refusal by the server."""
    admin.result.outcome = "abandoned"
    ran = run("weight", "llm", "canary=10", "--server", admin.address)
    assert ran.code == 5
    assert "is not in force" in ran.err


def test_a_hung_server_ends_a_change_in_time(run: Run, silent_server: str) -> None:
    """It may have taken the change, so that repeating it blindly is wrong."""
    ran = run("drain", "r1", "--timeout", "0.3", "--server", silent_server)
    assert ran.code == 4
    assert "may have been taken" in ran.err
    assert "start it" not in ran.err


def test_a_hung_server_has_not_changed_anything_in_a_dry_run(run: Run, silent_server: str) -> None:
    """Nothing was asked for that could have been taken."""
    arguments = ("drain", "r1", "--dry-run", "--timeout", "0.3", "--server", silent_server)
    ran = run(*arguments)
    assert ran.code == 3
    assert "did not answer in time" in ran.err


def test_a_missing_server_has_not_taken_a_change(run: Run) -> None:
    """The call was never sent."""
    ran = run("drain", "r1", "--server", "127.0.0.1:1")
    assert ran.code == 3
    assert "cannot reach the control server at 127.0.0.1:1" in ran.err


def test_a_change_can_be_read_by_programs(run: Run, admin: FakeAdmin) -> None:
    """``-o json`` prints the complete outcome."""
    ran = run("weight", "llm", "canary=10", "-o", "json", "--server", admin.address)
    answer = json.loads(ran.out)
    assert answer["elapsed_ms"] == 21.4
    assert answer["channels"] == ["RDS", "POOL"]
