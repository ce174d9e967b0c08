"""TLS from files through a real Envoy: to replicas, to clients, renewal and rejection."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from functools import partial
from typing import NamedTuple

import aiohttp
import orjson
import pytest

from support.certificates import Authority, Pair
from support.replicas import Replica, stack_over
from support.traffic import GENERATE, admin, eventually, in_force, picker_state
from tidegate_api.admin.v1 import admin_pb2
from tidegate_api.names import REPLICAS_HEADER

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("demo_extra")]

# Forced: what an earlier test did to a replica must not refuse a later change.
OPTIONS = admin_pb2.ChangeOptions(author="test", wait=True, timeout_seconds=20, force=True)
MODEL = {"name": "toy-llm", "version": "1", "state": "READY"}
BODY = {"text_input": "hello", "max_tokens": 1}


class Secured(NamedTuple):
    """Run a stack with a TLS-only replica, and return it with its authorities."""

    stack: object
    authority: Authority
    client: Pair
    listener: dict[str, str]
    replica: Replica


@pytest.fixture(scope="module")
async def secured(tmp_path_factory):
    """The replica requires Envoy's certificate, and Envoy checks the replica's name."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder, "ca")
    envoys = authority.sign("envoy", "DNS:envoy.test")
    server = authority.sign("replica", "DNS:triton.test")
    door = authority.sign("door", "IP:127.0.0.1")
    upstream = {
        "ca": str(authority.own.certificate),
        "certificate": str(envoys.certificate),
        "key": str(envoys.key),
        "server_name": "triton.test",
    }
    listener = {
        "certificate": str(door.certificate),
        "key": str(door.key),
        "client_ca": str(authority.own.certificate),
    }
    replica = Replica("r1", index=(MODEL,))
    async with (
        replica.serve(authority.server(server, ask_clients=True)),
        stack_over(replica, more={"upstream_tls": upstream}, gateway=True) as stack,
    ):
        yield Secured(stack, authority, authority.sign("client", "DNS:c"), listener, replica)


async def applied(stack, change):
    """Apply the fleet file's fleet, changed; return what clients refused."""
    fleet = stack.read_fleet()
    change(fleet)
    async with admin(stack) as operator:
        result = await operator.Apply(
            admin_pb2.ApplyRequest(fleet=orjson.dumps(fleet).decode(), options=OPTIONS)
        )
    refused = [each for each in result.problems if each.state != "STALLED"]
    if not refused:
        await in_force(stack, result)
    return refused


async def ask(http, stack, scheme="http", tls=None) -> int:
    """Send a request on a new connection; return the status."""
    url = f"{scheme}://{stack.http_address}{GENERATE}"
    options = {} if tls is None else {"ssl": tls}
    async with http.post(url, json=BODY, headers={"Connection": "close"}, **options) as answer:
        await answer.read()
        return answer.status


async def test_replicas_are_reached_and_known_by_name(http, secured):
    """Mutual TLS to replicas, with health checks; a certificate with another name is rejected."""
    stack = secured.stack
    assert await ask(http, stack) == 200
    assert secured.replica.asked

    def misnamed(fleet):
        fleet["pools"][0]["upstream_tls"]["server_name"] = "other.test"

    assert not await applied(stack, misnamed)
    assert await ask(http, stack) == 503
    assert not await applied(stack, lambda _fleet: None)
    assert await ask(http, stack) == 200


async def test_pickers_and_the_gateway_ask_replicas_over_tls_too(http, secured):
    """With the pool's files; a replica of another name is not ready, and unreachable."""
    stack = secured.stack

    async def known(*conditions: str) -> bool:
        found = await picker_state(http, stack)
        placement = found["probing"]["placement"]["r1"] or {"models": {}}
        model = placement["models"].get(MODEL["name"], {}).get(MODEL["version"], {})
        (pool,) = found["router"]["pools"].values()
        now = pool["endpoints"]["r1"]["conditions"]
        return model.get("state") == "READY" and tuple(now) == conditions

    async def said() -> tuple[int, str]:
        async with http.get(f"http://{stack.http_address}/v2/health/ready") as answer:
            return answer.status, answer.headers.get(REPLICAS_HEADER, "")

    async def index() -> tuple[str, list[str]]:
        async with http.post(f"http://{stack.http_address}/v2/repository/index") as answer:
            found = await answer.json(content_type=None) if answer.status == 200 else []
            return answer.headers[REPLICAS_HEADER], [each["name"] for each in found]

    assert await eventually(known)
    assert await said() == (200, "1/1")
    assert await index() == ("1/1", ["toy-llm"])

    def misnamed(fleet):
        fleet["pools"][0]["upstream_tls"]["server_name"] = "other.test"

    assert not await applied(stack, misnamed)

    async def unreachable() -> bool:
        return await index() == ("0/1; r1=unreachable", [])

    assert await eventually(unreachable)
    assert await eventually(partial(known, "not-ready")), "what was known of it stays"
    assert not await applied(stack, lambda _fleet: None)
    assert await eventually(known)
    assert await index() == ("1/1", ["toy-llm"])


async def test_clients_show_who_they_are_and_a_renewed_certificate_is_taken(http, secured):
    """A TLS listener rejects plain text; renewal of its file changes no resource."""
    stack, authority = secured.stack, secured.authority

    def closed(fleet):
        fleet["listener"]["tls"] = secured.listener

    assert not await applied(stack, closed)
    known = authority.client(secured.client)

    async def served() -> bool:
        # The old listener's socket is handed over, which clients may notice for a moment.
        try:
            return await ask(http, stack, "https", known) == 200
        except aiohttp.ClientError:
            return False

    async def refused(*how) -> bool:
        try:
            await ask(http, stack, *how)
        except aiohttp.ClientError:
            return True
        return False  # by a worker that still has the old listener

    assert await eventually(served)
    assert await eventually(refused)
    assert await eventually(partial(refused, "https", authority.client()))

    async def shown() -> bytes:
        host, port = stack.http_address.split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=known)
        try:
            found: ssl.SSLObject = writer.get_extra_info("ssl_object")
            return found.getpeercert(binary_form=True) or b""
        finally:
            writer.close()

    before = await shown()
    renewed = authority.sign("renewed", "IP:127.0.0.1")
    for new, used in ((renewed.key, "key"), (renewed.certificate, "certificate")):
        beside = f"{secured.listener[used]}.new"
        shutil.copy(new, beside)
        shutil.move(beside, secured.listener[used])

    async def changed() -> bool:
        return await shown() != before

    assert await eventually(changed)
    assert await served()
    assert not await applied(stack, lambda _fleet: None)


async def test_a_missing_file_is_rejected_with_envoys_message(http, secured):
    """The rejection names the file; requests continue."""
    stack = secured.stack

    def missing(fleet):
        fleet["pools"][0]["upstream_tls"]["ca"] = "/nowhere/ca.crt"

    refused = await applied(stack, missing)
    assert "/nowhere/ca.crt" in " ".join(problem.message for problem in refused), refused
    assert await ask(http, stack) == 200
    assert not await applied(stack, lambda _fleet: None)
    assert await ask(http, stack) == 200
