"""``model``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import FakeAdmin, Ran, Run

STEPS = [api.ModelOperationStep(at_unix_ms=5, text=each) for each in ("checking", "r1: loaded [x]")]
DONE = api.ModelOperation(
    number=3, kind="load", pool="llm", model="m", phase="done", ended=True, steps=STEPS
)


def made(**more: Any) -> api.ModelOperation:
    """Return an operation that differs in these fields."""
    answer = api.ModelOperation()
    answer.CopyFrom(DONE)
    answer.MergeFrom(api.ModelOperation(**more))
    return answer


def run_model(run: Run, admin: FakeAdmin, *arguments: str, answer: Any = DONE) -> Ran:
    """Run the verb against a server that answers so."""
    names = ("LoadModel", "UnloadModel", "AbortModel", "GetOperations", "GetModelParity")
    admin.calls |= {name: lambda _self, _request, _context: answer for name in names}
    return run("model", *arguments, "--server", admin.address)  # type: ignore[attr-defined]  # set by the fixture


def test_a_load_says_what_is_wanted(run: Run, admin: FakeAdmin, tmp_path: Path) -> None:
    """And prints the steps as they are."""
    body = tmp_path / "body.json"
    body.write_text('{"inputs": []}')
    ran = run_model(
        run,
        admin,
        *("load", "llm", "m", "--version", "2", "--endpoints", "r1,r2", "--parallel", "3"),
        *("--warmup", str(body), "--reason", "new", "--timeout", "9"),
    )
    assert ran.code == 0, ran.err
    (request,) = admin.requests
    assert (request.pool, request.model, request.version) == ("llm", "m", "2")
    assert (list(request.endpoints), request.parallel) == (["r1", "r2"], 3)
    assert list(request.warmup) == ['{"inputs": []}']
    assert (request.options.reason, request.options.wait) == ("new", True)
    assert request.options.timeout_seconds == 9
    assert ran.out.splitlines() == [
        "operation 3: load of m in pool llm: done",
        "  checking",
        "  r1: loaded [x]",
    ]


def test_an_unload_can_be_forced(run: Run, admin: FakeAdmin) -> None:
    """As a drain can."""
    assert run_model(run, admin, "unload", "llm", "m", "--force").code == 0
    assert type(admin.requests[0]) is api.UnloadModelRequest
    assert admin.requests[0].options.force


@pytest.mark.parametrize(
    ("answer", "arguments", "code", "words"),
    [
        (made(phase="undone", why="r2: broken"), (), 1, "nothing is changed: r2: broken"),
        (
            made(
                phase="failed",
                why="r2: broken",
                replicas=[api.OperationReplica(endpoint="r1", state="stuck")],
            ),
            (),
            1,
            "r2: broken; and r1 could not be brought back: see `tidegate model list 3`",
        ),
    ],
)
def test_an_operation_that_is_undone_is_a_failure(
    run: Run, admin: FakeAdmin, answer: Any, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """The reason is on stderr."""
    ran = run_model(run, admin, "load", "llm", "m", *arguments, answer=answer)
    assert (ran.code, ran.err) == (code, f"tidegate: {words}\n")


def test_an_operation_that_goes_on_has_a_code_of_its_own(run: Run, admin: FakeAdmin) -> None:
    """With the commands that follow it and give it up; without a wait it is no failure."""
    answer = api.ModelOperation(number=3, kind="load", pool="llm", model="m", phase="changing")
    ran = run_model(run, admin, "load", "llm", "m", "--timeout", "2", answer=answer)
    assert ran.code == 4
    assert "has not ended after 2 s" in ran.err
    assert "`tidegate model abort 3`" in ran.err
    assert run_model(run, admin, "load", "llm", "m", "--no-wait", answer=answer).code == 0


def test_an_abort_names_its_operation(run: Run, admin: FakeAdmin) -> None:
    """It succeeds if the operation is undone."""
    assert run_model(run, admin, "abort", "3", answer=made(phase="undone", why="x")).code == 0
    assert admin.requests[0].operation == 3


def test_operations_are_listed_and_shown(run: Run, admin: FakeAdmin) -> None:
    """All of them as a table, one with its steps."""
    answer = api.GetOperationsResponse(operations=[DONE])
    ran = run_model(run, admin, "list", answer=answer)
    assert "llm" in ran.out
    assert "checking" not in ran.out
    assert "checking" in run_model(run, admin, "list", "3", answer=answer).out
    found = json.loads(run_model(run, admin, "list", "-o", "json", answer=answer).out)
    assert (found[0]["number"], found[0]["ended_unix_ms"]) == (3, None)
    empty = run_model(run, admin, "list", "9", answer=api.GetOperationsResponse())
    assert (empty.code, "no operation 9" in empty.err) == (1, True)


def test_parity_is_a_table_and_an_exit_code(run: Run, admin: FakeAdmin) -> None:
    """Differences are sentences on stderr; nothing at all to compare is a failure, too."""
    same = [api.ComparedReplica(endpoint=each, digest="a" * 64, versions=["1"]) for each in "xy"]
    answer = api.GetModelParityResponse(replicas=same)
    ran = run_model(run, admin, "parity", "llm", "m", "--endpoints", "x,y", answer=answer)
    assert (ran.code, admin.requests[0].endpoints) == (0, "x,y")
    assert "aaaaaaaaaaaa" in ran.out
    answer.differences.append("versions: y has 2, x has 1")
    ran = run_model(run, admin, "parity", "llm", "m", answer=answer)
    assert (ran.code, ran.err) == (1, "tidegate: versions: y has 2, x has 1\n")
    gone = api.GetModelParityResponse(replicas=[api.ComparedReplica(endpoint="x", error="404")])
    assert run_model(run, admin, "parity", "llm", "m", answer=gone).code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("load", "llm"),
        ("abort",),
        ("abort", "x"),
        ("list", "1", "2"),
        ("unload", "llm", "m", "--version", "2"),
        ("load", "llm", "m", "--parallel", "0"),
    ],
)
def test_a_wrong_command_line_asks_nothing(
    run: Run, admin: FakeAdmin, arguments: tuple[str, ...]
) -> None:
    """One sentence, exit code 2."""
    ran = run_model(run, admin, *arguments)
    assert (ran.code, admin.requests) == (2, [])
    assert ran.err.count("\n") == 1


def test_a_warm_up_file_that_cannot_be_read_is_named(run: Run, admin: FakeAdmin) -> None:
    """Before anything is asked of the server."""
    ran = run_model(run, admin, "load", "llm", "m", "--warmup", "/nonexistent")
    assert (ran.code, "/nonexistent" in ran.err, admin.requests) == (1, True, [])
