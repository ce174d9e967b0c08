"""Who operates a control server: users of a Unix socket, tokens, and the record of calls."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from support.control_process import ControlProcess, served
from support.fleets import fleet
from tidegate_api.admin.v1 import admin_pb2 as api
from xds_server.admin.access.trail import CHANGES_NAME, OTHERS_NAME, RETRY_S

WAIT_S = 30.0
NOBODY = 65_534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a fleet file."""
    path = tmp_path / "fleet.yaml"
    path.write_text(fleet().model_dump_json())
    return path


def lines(folder: Path) -> list[dict]:
    """Return the record of changes."""
    return [json.loads(each) for each in (folder / CHANGES_NAME).read_text().splitlines()]


async def tidegate(*words: str, **environment: str) -> tuple[int, str]:
    """Run the command line; return its exit code and its output."""
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", "-m", "tidegate", *words],
        capture_output=True,
        check=False,
        text=True,
        timeout=WAIT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    return ended.returncode, ended.stdout + ended.stderr


async def weighed(server: ControlProcess, canary: int) -> int:
    """Set a weight; return the revision."""
    request = api.SetWeightsRequest(pool="llm", weights={"canary": canary})
    return (await server.admin.SetWeights(request, timeout=WAIT_S)).revision


async def test_the_author_is_the_user_of_the_socket(file: Path, tmp_path: Path) -> None:
    """Whatever the option says; the record has each call, also those before a restart."""
    state, address = tmp_path / "state", f"unix:{tmp_path}/admin.sock"
    me = getpass.getuser()
    async with served(file, state, admin=address):
        words = ("weight", "llm", "canary=11", "--server", address)
        code, said = await tidegate(*words, "--author", "the boss")
        assert code == 0, said
        assert (tmp_path / "admin.sock").stat().st_mode & 0o777 == 0o600
    # It was killed, so that its socket is still there.
    async with served(file, state, admin=address) as server:
        await weighed(server, 12)
        answer = await server.admin.ListRevisions(api.ListRevisionsRequest(limit=2))
        assert [each.author for each in answer.revisions] == [me, f"{me} (the boss)"]
    told = [(each["identity"], each["by"], each["call"], each["verdict"]) for each in lines(state)]
    assert told == 2 * [(me, "user", "SetWeights", "OK")]


STRANGER = """
import os, sys, grpc
from tidegate_api.admin.v1 import admin_pb2 as api, admin_pb2_grpc
os.setgroups([]), os.setgid(65534), os.setuid(65534)
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = admin_pb2_grpc.AdminStub(channel)
    for method in ("GetFleet", "SetWeights", "Apply"):
        try:
            getattr(stub, method)(getattr(api, method + "Request")(), timeout=20)
            print("OK")
        except grpc.RpcError as error:
            print(error.code().name)
"""
"""Calls as a user of no other group, having loaded what that user might not read."""


async def test_a_user_of_the_group_is_an_operator(file: Path, tmp_path: Path) -> None:
    """And a user who is not in it cannot even connect."""
    if os.getuid():
        pytest.skip("needs root, to be someone else")
    folder = Path("/tmp", f"tidegate-test-{os.getpid()}")  # noqa: S108 - others must reach it
    found = []
    for options in ((), ("--admin-group", str(NOBODY))):
        address = f"unix:{folder}/{len(found)}/admin.sock"
        async with served(file, tmp_path / "state", *options, admin=address):
            stranger = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", STRANGER, address), stdout=asyncio.subprocess.PIPE
            )
            said, _ = await asyncio.wait_for(stranger.communicate(), WAIT_S)
            found.append(said.decode().split())
        # Made for the owner alone, as the first socket wants it.
        await asyncio.to_thread(folder.chmod, 0o711)
    await asyncio.to_thread(shutil.rmtree, folder)
    assert found == [["UNAVAILABLE"] * 3, ["OK", "INVALID_ARGUMENT", "PERMISSION_DENIED"]]
    refused = (tmp_path / "state" / OTHERS_NAME).read_text().splitlines()[-1]
    assert json.loads(refused)["role"] == "operator"


async def test_tokens_rotate_without_a_restart(file: Path, tmp_path: Path) -> None:
    """Made, used over both faces, and taken back; none is in an output of the server."""
    hashes = tmp_path / "tokens"
    code, token = await tidegate("tokens", str(hashes), "ann", "--role", "operator", "--days", "2")
    assert code == 0, token
    secret = token.splitlines()[0]
    web = "127.0.0.1:0"
    options = ("--admin-tokens", str(hashes), "--admin-http", web)
    async with served(file, tmp_path / "state", *options) as server:
        at = server.ready["admin"]
        (tmp_path / "secret").write_text(f"{secret}\n")
        words = ("weight", "llm", "canary=11", "--server", at)
        code, said = await tidegate(*words, TIDEGATE_TOKEN_FILE=str(tmp_path / "secret"))
        assert code == 0, said
        url = f"http://{server.ready['admin_http']}/v1/SetWeights"
        body = {"pool": "llm", "weights": {"canary": 12}, "options": {"reason": "by hand"}}
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {secret}"}) as http:
            async with http.post(url, json=body) as answer:
                assert answer.status == 200
                assert (await answer.json())["revision"] == "3"
            hashes.write_text("")
            async with asyncio.timeout(WAIT_S):
                while True:
                    async with http.post(url, json=body) as answer:
                        if answer.status == 401:
                            break
                    await asyncio.sleep(0.2)
        await server.event("tokens_taken")
        assert secret not in json.dumps(server.seen)
    assert {each["identity"] for each in lines(tmp_path / "state")} == {"ann"}
    for each in (tmp_path / "state").iterdir():
        assert secret.encode() not in each.read_bytes()


async def test_a_full_disk_keeps_no_drain_from_being_made(file: Path, tmp_path: Path) -> None:
    """It is said in the log and in the status; lines come when there is space, each once."""
    state = tmp_path / "state"
    async with served(file, state) as server:
        assert "admin_without_identity" in [each["event"] for each in server.seen]
        await server.drain("r1")
        async with asyncio.timeout(WAIT_S):  # an answer waits for its line for a second only
            while not (state / CHANGES_NAME).exists() or not lines(state):  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.05)
        size = (state / CHANGES_NAME).stat().st_size
        limits = (size + 30, resource.RLIM_INFINITY)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
        await asyncio.wait_for(server.drain("r2"), WAIT_S)
        assert (await server.event("audit_not_written"))["level"] == "error"
        status = await server.status()
        assert any("the record of admin calls cannot be written" in e for e in status.reasons)
        endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, endless)
        async with asyncio.timeout(RETRY_S + WAIT_S):
            await server.event("audit_written_again")
    first, cut, second = (state / CHANGES_NAME).read_text().splitlines()
    assert [json.loads(each)["arguments"]["endpoint"] for each in (first, second)] == ["r1", "r2"]
    assert cut == second[:30]
