"""Calls run behind the check of their caller, and leave a line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc
import pytest

from support.operators import PLAIN, bearer, calls, machine, user
from tidegate_api.admin.v1 import admin_pb2
from tidegate_common.tls.roles import ADMINS, OPERATORS, table
from xds_server.admin.access.caller import ACCESS, CHANGES, CallEnded
from xds_server.admin.access.tokens import Tokens, line_of, new_token
from xds_server.admin.access.trail import CHANGES_NAME, OTHERS_NAME

ADMIN = "/tidegate.admin.v1.Admin"
ROLES = ("viewer", "operator", "admin")


def lines(folder: Path, name: str = CHANGES_NAME) -> list[dict]:
    """Return the lines of a file of the record."""
    file = folder / name
    return [json.loads(each) for each in file.read_text().splitlines()] if file.exists() else []


async def answered(request, _context) -> admin_pb2.ChangeResult:
    """Answer with the author that a change has."""
    author = request.options.author if hasattr(request, "options") else ""
    return admin_pb2.ChangeResult(revision=8, changes=[author])


async def verdict(made, path: str, seen, request=None, handler=answered) -> str:
    """Make a call and return how it ended."""
    try:
        await made.run(path, request or admin_pb2.SetWeightsRequest(pool="llm"), seen, handler)
    except CallEnded as ended:
        return ended.code.name
    return "OK"


@pytest.mark.parametrize("path", sorted(ACCESS.methods))
async def test_each_call_is_for_its_roles(path: str, tmp_path: Path) -> None:
    """By certificate and by token alike; one table says which."""
    held = {role: new_token() for role in ROLES}
    file = tmp_path / "tokens"
    file.write_text("".join(f"{line_of(role, role, held[role])}\n" for role in ROLES))
    made = calls(tokens=Tokens(file), table=table([]))
    allowed = {role for role in ROLES if role in ACCESS.methods[path]}
    for role in (*ROLES, "envoy", "picker", "reporter"):
        wanted = "OK" if role in allowed else "PERMISSION_DENIED"
        assert await verdict(made, path, machine(f"spiffe://tidegate/{role}")) == wanted
        if role in held:
            assert await verdict(made, path, bearer(held[role])) == wanted


def test_changes_are_the_calls_that_viewers_may_not_make() -> None:
    """The record keeps them apart from all others."""
    assert {path for path, roles in ACCESS.methods.items() if roles in (OPERATORS, ADMINS)} == (
        CHANGES
    )


async def test_the_author_of_a_change_is_its_caller(tmp_path: Path) -> None:
    """Whatever the request says; that is added in brackets."""
    made = calls(tmp_path)
    request = admin_pb2.SetWeightsRequest(options=admin_pb2.ChangeOptions(author="the boss"))
    answer = await made.run(f"{ADMIN}/SetWeights", request, user(0, "root"), answered)
    assert list(answer.changes) == ["root (the boss)"]
    answer = await made.run(f"{ADMIN}/Rollback", admin_pb2.RollbackRequest(), PLAIN, answered)
    assert list(answer.changes) == ["anonymous"]


async def test_a_request_is_read_after_its_caller_is_known(tmp_path: Path) -> None:
    """What a stranger sends costs nothing, and names no author."""
    made = calls(tmp_path, table=table([]))
    seen = []

    async def fill(message: admin_pb2.SetWeightsRequest) -> None:
        seen.append(message)
        message.options.author = "forged"

    request, path = admin_pb2.SetWeightsRequest(), f"{ADMIN}/SetWeights"
    with pytest.raises(CallEnded):
        await made.run(path, request, machine("spiffe://x/y"), answered, fill)
    assert not seen
    who = machine("spiffe://tidegate/operator")
    answer = await made.run(path, request, who, answered, fill)
    assert list(answer.changes) == ["spiffe://tidegate/operator (forged)"]


async def test_each_call_leaves_a_line_before_its_answer(tmp_path: Path) -> None:
    """Changes in one file, what reads or was refused in the other."""
    refused: list = []
    made = calls(tmp_path, table=table([]), on_refused=lambda *each: refused.append(each))
    viewer = machine("spiffe://tidegate/viewer")
    assert await verdict(made, f"{ADMIN}/SetWeights", user(0, "root")) == "OK"
    (line,) = lines(tmp_path)
    assert {
        key: line[key] for key in ("identity", "by", "role", "call", "verdict", "revision")
    } == {
        "identity": "root",
        "by": "user",
        "role": "admin",
        "call": "SetWeights",
        "verdict": "OK",
        "revision": 8,
    }
    assert line["arguments"] == {"pool": "llm"}
    await verdict(made, f"{ADMIN}/GetStatus", viewer, admin_pb2.GetStatusRequest())
    await verdict(made, f"{ADMIN}/Apply", viewer, admin_pb2.ApplyRequest(fleet="x"))
    await asyncio.sleep(0)
    await made._trail.stop()
    told = [(each["call"], each["role"], each["verdict"]) for each in lines(tmp_path, OTHERS_NAME)]
    assert told == [("GetStatus", "viewer", "OK"), ("Apply", "viewer", "PERMISSION_DENIED")]
    assert len(refused) == 1
    assert "needs the role admin" in refused[0][2]


async def test_how_a_call_failed_is_in_its_line(tmp_path: Path) -> None:
    """Its status, and not its text, which may quote what the caller sent."""

    async def missing(_request, context) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no pool planted-secret")

    async def broken(_request, _context) -> None:
        raise ZeroDivisionError("planted-secret")

    async def endless(_request, _context) -> None:
        await asyncio.Event().wait()

    made, path = calls(tmp_path), f"{ADMIN}/SetWeights"
    assert await verdict(made, path, PLAIN, handler=missing) == "NOT_FOUND"
    with pytest.raises(ZeroDivisionError):
        await verdict(made, path, PLAIN, handler=broken)
    task = asyncio.create_task(verdict(made, path, PLAIN, handler=endless))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await made._trail.stop()
    assert [each["verdict"] for each in lines(tmp_path)] == ["NOT_FOUND", "UNKNOWN", "CANCELLED"]
    assert "planted-secret" not in (tmp_path / CHANGES_NAME).read_text()


async def test_tokens_are_in_no_line_and_no_error(tmp_path: Path) -> None:
    """Neither right nor wrong ones, nor their hashes."""
    right, wrong = new_token(), new_token()
    file = tmp_path / "tokens"
    file.write_text(line_of("ann", "operator", right))
    made = calls(tmp_path, tokens=Tokens(file))
    for token in (right, wrong):
        await verdict(made, f"{ADMIN}/SetWeights", bearer(token))
        await verdict(made, f"{ADMIN}/Apply", bearer(token), admin_pb2.ApplyRequest(fleet="x"))
    await made._trail.stop()
    text = "".join((tmp_path / name).read_text() for name in (CHANGES_NAME, OTHERS_NAME))
    for secret in (right, wrong, *(line_of("a", "viewer", each)[-20:] for each in (right, wrong))):
        assert secret not in text
