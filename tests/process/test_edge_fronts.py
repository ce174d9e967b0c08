"""Several addresses and host names, and HTTP/3, through a real Envoy."""

from __future__ import annotations

import asyncio
import copy
import json
from contextlib import asynccontextmanager

import pytest
import yaml

from support.certificates import Authority
from support.edge_stack import CHAT, EdgeStack
from support.http3_client import http3_client
from support.sockets import Raw, head
from support.traffic import eventually
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.waiting import http_ok, wait_until
from xds_server.fleet.channels import drains
from xds_server.fleet.model.fleet import Fleet

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("demo_extra")]

INFER = "/v2/models/{}/infer"
NAMED = {
    name: json.dumps({"messages": [], "model": name}).encode() for name in ("toy-llm", "vision")
}


async def ask(address, path, *lines, body=b"{}", host="test", late=False):
    """Send one request; return its status and headers. ``late``: its body comes by itself."""
    text = head(path, f"content-length: {len(body)}", *lines).replace(
        b"host: test", b"host: " + host.encode()
    )
    async with Raw(address) as raw:
        if late:
            await raw.send(text)
            await asyncio.sleep(0.05)  # whether Envoy has read the head by then changes no answer
            await raw.send(body)
        else:
            await raw.send(text, body)
        top = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 30)).decode("latin1")
    pairs = (line.partition(":") for line in top.splitlines()[1:] if line)
    return int(top.split(" ", 2)[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def test_a_host_or_an_address_reaches_its_pools_alone(edge_ports):
    """By path, by a header, and by a body that only the picker reads."""
    listener = {
        "hosts": [{"names": ["llm.test"], "pools": ["llm"]}],
        "further": [{"name": "inner", "address": edge_ports.address(), "pools": ["vision"]}],
    }
    async with EdgeStack(listener=listener, vision={"default": False}) as stack:
        inner = listener["further"][0]["address"]

        async def ask_the_picker() -> bool:  # only it reads bodies; without it they are served
            main, _ = await ask(stack.listener, CHAT, body=NAMED["vision"], host="llm.test:80")
            other, _ = await ask(inner, CHAT, body=NAMED["toy-llm"])
            return main == other == 404

        assert await eventually(ask_the_picker)
        for path, lines, body in (
            (INFER.format("vision"), (), b"{}"),
            (CHAT, ("tidegate-model: vision",), NAMED["vision"]),
            (CHAT, (), NAMED["vision"]),
        ):
            stack.forget()
            status, headers = await ask(stack.listener, path, *lines, body=body, host="llm.test:80")
            assert (status, stack.vision.seen) == (404, [])
            assert headers["x-tidegate-reason"] in {"unknown-path", "unknown-model"}
            for address in (stack.listener, inner):
                status, _ = await ask(address, path, *lines, body=body)
                assert status == 200
            assert len(stack.vision.seen) == 2
        stack.forget()
        for path, body in ((INFER.format("toy-llm"), b"{}"), (CHAT, NAMED["toy-llm"])):
            assert (await ask(stack.listener, path, body=body, host="LLM.test"))[0] == 200
            assert (await ask(inner, path, body=body))[0] == 404
        assert (len(stack.llm.seen), stack.vision.seen) == (2, [])
        stack.forget()
        for _ in range(3):  # the route is matched again before a body that comes late goes on
            body = NAMED["vision"]
            status, _ = await ask(stack.listener, CHAT, body=body, host="llm.test", late=True)
            assert (status, stack.seen) == (404, [])
            status, _ = await ask(inner, CHAT, body=NAMED["toy-llm"], late=True)
            assert (status, stack.seen) == (404, [])


async def goes_on(raw) -> bool:
    """Send a request; return whether its connection stays open after a good answer."""
    await raw.send(head(INFER.format("toy-llm"), "content-length: 2"), b"{}")
    top = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 30)).decode("latin1")
    assert " 200 " in top
    length = next(x for x in top.splitlines() if x.startswith("content-length"))
    await raw.reader.readexactly(int(length.partition(":")[2]))
    return "connection: close" not in top


async def test_a_listener_comes_changes_and_goes_while_another_serves(edge_ports):
    """The connection of the other one stays open throughout.

    Where a listener begins to take operators' calls, its own connections drain, as `drains` says.
    """
    address = edge_ports.address()
    async with EdgeStack() as stack, Raw(stack.listener) as kept:
        assert await goes_on(kept)
        fleet = stack.first_fleet()
        nowhere = {"http": ["127.0.0.1:1"], "grpc": ["127.0.0.1:1"]}
        fleet["gateway"] = {**nowhere, "operators": nowhere}
        fleet["listener"]["further"] = [{"name": "inner", "address": address}]
        await stack.apply(fleet)
        assert await goes_on(kept)

        async def answers() -> bool:
            try:
                return (await ask(address, INFER.format("vision")))[0] == 200
            except OSError:
                return False

        assert await eventually(answers)
        async with Raw(address) as inner:
            assert await goes_on(inner)
            takes = copy.deepcopy(fleet)
            takes["listener"]["further"][0]["operators"] = True
            was, now = Fleet.model_validate(fleet), Fleet.model_validate(takes)
            assert drains(was, now) == ("listener.further",)
            await stack.apply(takes)

            async def closed() -> bool:
                return not await goes_on(inner)

            assert await eventually(closed)
        assert await goes_on(kept)
        await stack.apply(stack.first_fleet())
        assert await goes_on(kept)

        async def gone() -> bool:
            return not await answers()

        assert await eventually(gone)
        assert await goes_on(kept)


async def test_http_3_reaches_a_replica(edge_ports, tmp_path):
    """With another Envoy as the client; answers over TCP tell of it."""
    authority = Authority(tmp_path, "authority")
    pair = authority.sign("edge", "DNS:edge.test", "IP:127.0.0.1")
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    async with _PlainEdge(listener={"tls": tls, "http3": True}) as stack:
        url = f"https://{stack.listener}{INFER.format('toy-llm')}"
        async with stack.http.post(url, data=b"{}", ssl=authority.client()) as answer:
            assert answer.status == 200
            port = stack.listener.rpartition(":")[2]
            assert answer.headers["alt-svc"] == f'h3=":{port}"; ma=86400'
        stack.forget()
        async with _client(stack, edge_ports.address(), authority) as address:
            for path, body in ((INFER.format("vision"), b"{}"), (CHAT, NAMED["vision"])):
                assert (await ask(address, path, body=body))[0] == 200
            assert len(stack.vision.seen) == 2
            page = await stack.envoy_page("stats?format=json&filter=ingress.downstream_rq_http3")
            (counter,) = [each["value"] for each in page["stats"] if "value" in each]
            assert counter >= 2


class _PlainEdge(EdgeStack):
    """Is ready without a request in clear text, which a listener with TLS refuses."""

    async def serving(self) -> None:
        """Wait until the listener is there, and the replicas are healthy."""

        async def ready() -> str | None:
            page = await self.envoy_page("clusters?format=json")
            states = [
                "failed_active_health_check" in host["health_status"]
                for one in page["cluster_statuses"]
                for host in one.get("host_statuses", [])
            ]
            return None if len(states) >= 5 and not any(states) else str(states)

        await wait_until(
            lambda: http_ok(self.http, f"http://{self.envoy_admin}/ready"),
            "Envoy",
            timeout_s=60,
            supervisors=(self.supervisor,),
        )
        await wait_until(ready, "replicas", timeout_s=60, supervisors=(self.supervisor,))


@asynccontextmanager
async def _client(stack, address, authority):
    """Run an Envoy that sends what it gets over HTTP/3."""
    config = http3_client(address, stack.listener, authority.own.certificate)
    file = stack.run.write("client.yaml", yaml.safe_dump(config))
    command = envoy_command(envoy_binary(), file, 1)
    await stack.supervisor.start("client", command, envoy_environment())

    async def listening() -> str | None:
        try:
            return None if (await ask(address, INFER.format("toy-llm")))[0] == 200 else "no answer"
        except OSError as error:
            return str(error)

    await wait_until(listening, "the client", timeout_s=60, supervisors=(stack.supervisor,))
    stack.forget()
    yield address


@pytest.fixture
def edge_ports():
    """Return ports that are held for the test."""
    with HeldPorts() as ports:
        yield ports
