"""``tidegate drain`` waits until a replica is safe to stop."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from tidegate.cli import stopping
from tidegate_api.admin.v1 import admin_pb2 as api

if TYPE_CHECKING:
    from support.command_line import FakeAdmin, Run

SAFE = api.GetDrainResponse(safe=True, pickers=2)
BUSY = api.GetDrainResponse(waits_for=["picker p1: 1 request in flight"], in_flight=1, pickers=2)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again at once."""
    monkeypatch.setattr(stopping, "EVERY_S", 0.01)


def answers(admin: FakeAdmin, *given: api.GetDrainResponse | grpc.StatusCode) -> list[Any]:
    """Let the server give these answers, the last one again and again; return what was asked."""
    asked: list[Any] = []

    def call(_: Any, request: api.GetDrainRequest, context: Any) -> api.GetDrainResponse:
        asked.append(request.endpoint)
        one = given[min(len(asked), len(given)) - 1]
        if isinstance(one, grpc.StatusCode):
            context.abort(one, "away")
        return one

    admin.calls["GetDrain"] = call
    return asked


def test_a_drain_ends_when_it_is_safe(run: Run, admin: FakeAdmin) -> None:
    """It asks until all pickers report zero."""
    asked = answers(admin, BUSY, BUSY, SAFE)
    ran = run("drain", "llm/r1", "--server", admin.address)
    assert (ran.code, asked) == (0, ["llm/r1"] * 3)
    assert ran.out.splitlines()[-1] == "safe to stop: 2 pickers report nothing in flight on llm/r1"


def test_its_time_may_be_over_before(run: Run, admin: FakeAdmin) -> None:
    """Exit code 4, with what still uses it; a zero that is not known is none."""
    answers(admin, BUSY)
    ran = run("drain", "r1", "--timeout", "0.2", "--server", admin.address)
    assert ran.code == 4
    assert "r1 is not safe to stop after" in ran.err
    assert "picker p1: 1 request in flight" in ran.err


def test_a_restart_of_the_control_server_is_waited_out(run: Run, admin: FakeAdmin) -> None:
    """The drain is in force; only who can say so was away."""
    answers(admin, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE, SAFE)
    assert run("drain", "r1", "--server", admin.address).code == 0


def test_other_errors_end_it(run: Run, admin: FakeAdmin) -> None:
    """The replica may have been removed meanwhile."""
    answers(admin, grpc.StatusCode.NOT_FOUND)
    assert run("drain", "r1", "--server", admin.address).code == 1


def test_programs_get_it_too(run: Run, admin: FakeAdmin) -> None:
    """One document, also where it is not safe."""
    answers(admin, BUSY)
    ran = run("drain", "r1", "--timeout", "0.1", "-o", "json", "--server", admin.address)
    data = json.loads(ran.out)
    assert (data["revision"], data["safe_to_stop"], data["in_flight"]) == (8, False, 1)
    assert data["waits_for"] == ["picker p1: 1 request in flight"]


def test_counts_that_no_answer_gave_are_unknown(run: Run, admin: FakeAdmin) -> None:
    """They are null in JSON, not zero: a program would stop a replica that is in use."""
    answers(admin, grpc.StatusCode.UNAVAILABLE)
    ran = run("drain", "r1", "--timeout", "0.1", "-o", "json", "--server", admin.address)
    data = json.loads(ran.out)
    assert (data["safe_to_stop"], data["in_flight"], data["pickers"]) == (False, None, None)


@pytest.mark.parametrize(
    "words", [("drain", "r1", "--no-wait"), ("drain", "r1", "--dry-run"), ("undrain", "r1")]
)
def test_nothing_is_asked_where_nothing_is_waited_for(
    run: Run, admin: FakeAdmin, words: tuple[str, ...]
) -> None:
    """Neither where the replica comes back."""
    asked = answers(admin, SAFE)
    assert run(*words, "--server", admin.address).code == 0
    assert asked == []
