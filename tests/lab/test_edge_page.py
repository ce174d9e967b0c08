"""The page on the edge: each of its blocks, and the commands behind it, through a real Envoy."""

from __future__ import annotations

import asyncio
import copy
import re
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import yaml

from support.certificates import Authority
from support.in_process_stack import InProcessStack
from support.key_server import KeyServer
from support.stand_in import StandIn
from support.tokens import token
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts

pytestmark = pytest.mark.timeout(180)

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "edge.md"
BLOCK = re.compile(r"^```(yaml|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = [part.partition("\n") for part in PAGE.read_text().split("\n## ")]
BLOCKS = {title: BLOCK.findall(text) for title, _, text in SECTIONS if BLOCK.search(text)}
FIRST, *TITLES = BLOCKS
FLEET = yaml.safe_load(BLOCKS[FIRST][0][1])
LISTENER, INNER = FLEET["listener"]["address"], "10.0.0.7:8080"
"""Addresses of the page, in whose place the test has ports of its own."""


def added(block):
    """Return the page's fleet with a block in place."""
    fleet = copy.deepcopy(FLEET)
    fleet["listener"] |= block.get("listener", {})
    for more in block.get("pools", []):
        (pool,) = (each for each in fleet["pools"] if each["name"] == more["name"])
        pool.update(more)
    return fleet


def commands(block):
    """Return the lines that define something, and the commands with what they print."""
    lines = block.splitlines()
    said = [line.rpartition("#") for line in lines if re.search(r"\s#( |$)", line)]
    defined = [line for line in lines if not re.search(r"\s#( |$)", line)]
    return defined, [(command.strip(), printed.strip()) for command, _, printed in said]


class DocumentedStack(InProcessStack):
    """The page's fleet over one stand-in for each replica; ``folder`` has its certificates."""

    def __init__(self, folder):
        super().__init__("delta", spare=3)
        self.authority = Authority(folder, "authority")
        names = ("DNS:llm.example", "DNS:lab.example", "IP:127.0.0.1")
        self.pair = self.authority.sign("edge", *names)
        self.replicas = {each["id"]: StandIn(answer_bytes=2000) for each in self._endpoints(FLEET)}
        self._outer = AsyncExitStack()

    @staticmethod
    def _endpoints(fleet):
        return [each for pool in fleet["pools"] for each in pool["endpoints"]]

    async def __aenter__(self):
        async with AsyncExitStack() as exit_:
            for replica in self.replicas.values():
                await exit_.enter_async_context(replica.serve())
            ports = exit_.enter_context(HeldPorts())
            self.inner = ports.address()
            context = self.authority.server(self.pair, ask_clients=False)
            self.keys = KeyServer(ports.address(), context)
            await exit_.enter_async_context(self.keys.serve())
            await super().__aenter__()
            self._outer = exit_.pop_all()
        return self

    async def __aexit__(self, *_):
        await super().__aexit__(*_)
        await self._outer.aclose()

    def first_fleet(self):
        """Return the page's first block."""
        return self.completed(FLEET)

    def completed(self, fleet):
        """Return a fleet of the page with ports and files of this machine."""
        fleet = copy.deepcopy(fleet)
        listener = fleet["listener"]
        listener["address"] = self.listener
        for one in (listener, *listener.get("further", [])):
            if "tls" in one:
                one["tls"] = {
                    "certificate": str(self.pair.certificate),
                    "key": str(self.pair.key),
                }
        for one in listener.get("further", []):
            assert one["address"] == INNER
            one["address"] = self.inner
        for provider in listener.get("jwt", []):
            provider["jwks_url"] = provider["jwks_url"].replace("sso.example", self.keys.address)
            assert provider["jwks_url"] == self.keys.url
            provider["jwks_ca"] = str(self.authority.own.certificate)
        for each in self._endpoints(fleet):
            each["http"] = self.replicas[each["id"]].http
        for pool in fleet["pools"]:
            pool["health"] = {"path": "/health", "timeout": "20s", "interval": "1s"}
        return fleet | {"pickers": super().first_fleet()["pickers"]}

    async def prints(self, command, expected, defined):
        """Wait until a command of the page prints this."""
        found = []

        async def as_said() -> bool:
            found.append(await self._printed(command, defined))
            return found[-1] == expected

        assert await eventually(as_said), f"{command}: {found[-1]!r}, not {expected!r}"

    async def _printed(self, command, defined):
        """Run a command, with the page's hosts led to the ports of this machine."""
        curl = (
            f"curl() {{ command curl --cacert {self.authority.own.certificate} --max-time 20"
            f' --connect-to {INNER}:{self.inner} --connect-to ::{self.listener} "$@"; }}'
        )
        good = token(iss="https://sso.example", aud="inference")
        script = "\n".join((curl, f"TOKEN={good}", *defined, command))
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        return out.decode().strip()


@pytest.fixture(scope="module")
async def stack(demo_extra, tmp_path_factory):  # noqa: ARG001 - skips first
    """Run one stack for all blocks."""
    if shutil.which("curl") is None:
        pytest.skip("the curl command is not installed")
    async with DocumentedStack(tmp_path_factory.mktemp("edge")) as made:
        yield made


@pytest.mark.parametrize("title", TITLES)
async def test_a_block_of_the_page_does_what_it_says(stack, title):
    """As it stands, but for ports and files."""
    (kind, text), *rest = BLOCKS[title]
    assert kind == "yaml"
    helpers, _ = commands(BLOCKS[FIRST][1][1])
    await stack.apply(stack.completed(added(yaml.safe_load(text))))
    port = stack.listener.rpartition(":")[2]
    for kind, lines in rest:
        assert kind == "sh"
        more, wanted = commands(lines)
        assert wanted
        for command, printed in wanted:
            await stack.prints(command, printed.replace(":443", f":{port}"), [*helpers, *more])


def test_each_block_has_commands():
    """A block without one would be believed untried."""
    for title, found in BLOCKS.items():
        assert [kind for kind, _ in found] == ["yaml", "sh"], title
