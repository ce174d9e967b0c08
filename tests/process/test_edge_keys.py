"""Keys of tokens that Envoys fetch: rotation under load, and a server of keys that fails."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from support.certificates import Authority
from support.edge_stack import CHAT, EdgeStack
from support.key_server import KeyServer
from support.tokens import key_set, token
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts

pytestmark = pytest.mark.timeout(180)

NEW = b"another secret of thirty-two bytes"
PRIVATE = b'{"model": "vision", "messages": []}'
OLD_TOKEN, NEW_TOKEN = token(), token(NEW, "two")


@asynccontextmanager
async def keyed(tmp_path, subject="IP:127.0.0.1"):
    """Run a stack whose private pool takes the tokens of a server of keys, which is not started."""
    authority = Authority(tmp_path, "authority")
    tls = authority.server(authority.sign("keys", subject), ask_clients=False)
    with HeldPorts() as ports:
        keys = KeyServer(ports.address(), tls)
        provider = {"name": "tests", "issuer": "tests", "jwks_url": keys.url, "jwks_refresh": "1s"}
        provider["jwks_ca"] = str(authority.own.certificate)
        stack = EdgeStack(listener={"jwt": [provider]}, vision={"jwt": {"any_of": ["tests"]}})
        stack.keys = keys
        async with stack:
            yield stack


async def status(stack, with_token="", body=PRIVATE):
    """Return the status of one request."""
    headers = {"authorization": f"Bearer {with_token}"} if with_token else {}
    url = f"http://{stack.listener}{CHAT}"
    async with stack.http.post(url, data=body, headers=headers) as answer:
        return answer.status


async def becomes(stack, expected, with_token=OLD_TOKEN):
    """Wait until a request has this status."""

    async def has() -> bool:
        return await status(stack, with_token) == expected

    return await eventually(has)


async def refreshed(keys, times=2):
    """Wait until the keys were asked for again."""
    before = keys.asked

    async def asked() -> bool:
        return keys.asked >= before + times

    assert await eventually(asked)


async def test_keys_rotate_under_load(demo_extra, tmp_path):  # noqa: ARG001 - skips first
    """The new key beside the old one, new tokens, then the new key alone: no request fails."""
    async with keyed(tmp_path) as stack, stack.keys.serve():
        assert await becomes(stack, 200)
        used, statuses = [OLD_TOKEN], []

        async def ask() -> None:
            while True:
                statuses.append(await status(stack, used[0]))

        asking = [asyncio.create_task(ask()) for _ in range(3)]
        assert await status(stack, NEW_TOKEN) == 401
        stack.keys.keys = key_set(two=NEW)
        assert await becomes(stack, 200, NEW_TOKEN)
        used[0] = NEW_TOKEN
        await refreshed(stack.keys)
        stack.keys.keys = key_set(NEW, "two")
        assert await becomes(stack, 401, OLD_TOKEN)
        await refreshed(stack.keys)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert set(statuses) == {200}
        assert len(statuses) > 20


async def test_a_server_of_keys_that_is_down_at_the_start(demo_extra, tmp_path):  # noqa: ARG001
    """Other pools are served, the private one refuses, and opens once the keys are there."""
    async with keyed(tmp_path) as stack:
        assert await status(stack, body=b"{}") == 200
        assert await status(stack, OLD_TOKEN) == 401
        assert stack.vision.seen == []
        async with stack.keys.serve():
            assert await becomes(stack, 200)
            assert await status(stack) == 401


async def test_keys_outlive_their_server(demo_extra, tmp_path):  # noqa: ARG001 - skips first
    """Refusals, garbage, slowness and death leave the keys that were fetched last in force."""
    async with keyed(tmp_path) as stack:
        async with stack.keys.serve() as keys:
            assert await becomes(stack, 200)
            await refreshed(keys)
            good = keys.keys
            for fault in (
                {"status": 500},
                {"status": 302},
                {"keys": "no JSON"},
                {"keys": '{"keys": []}'},
                {"keys": "[" * 100_000},
            ):
                for name, value in fault.items():
                    setattr(keys, name, value)
                await refreshed(keys)
                assert await status(stack, OLD_TOKEN) == 200, fault
                assert await status(stack, NEW_TOKEN) == 401, fault
                keys.status, keys.keys = 200, good
            keys.delay_s = 30.0
            assert await status(stack, OLD_TOKEN) == 200
        for _ in range(15):
            assert await status(stack, OLD_TOKEN) == 200
            await asyncio.sleep(0.2)
        assert await status(stack) == 401
        stack.keys.delay_s, stack.keys.keys = 0.0, key_set(NEW, "two")
        async with stack.keys.serve():
            assert await becomes(stack, 200, NEW_TOKEN)
            assert await status(stack, OLD_TOKEN) == 401


async def test_a_server_of_keys_proves_who_it_is(demo_extra, tmp_path):  # noqa: ARG001
    """Keys of a server with another name are not taken, however good its signature."""
    async with keyed(tmp_path, "DNS:other.example") as stack, stack.keys.serve():
        for _ in range(10):
            assert await status(stack, OLD_TOKEN) == 401
            await asyncio.sleep(0.2)
        assert stack.keys.asked == 0
        assert stack.vision.seen == []
