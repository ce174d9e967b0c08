"""Envoys that the control server does not configure, in front of test replicas and a picker."""

from __future__ import annotations

import io
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import grpc
import yaml

from support.traffic import metric
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import http_ok, wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_common.children import module_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

GENERATE = "/v2/models/toy-llm/generate"
EXAMPLES = Path(__file__).resolve().parents[2] / "deploy/envoy"
CLIENTS, PICKER, REPLICAS = 10080, 18001, (8000, 8010, 8020)
CONTROL = 18000
"""Ports in the examples."""
SECOND = 18002
"""Port of a second picker, in what tests add to the examples."""
CONVERSATIONS, TURNS = 12, 7
POSTS = CONVERSATIONS * TURNS
TURN = "what does the tide gauge say at noon, and why? " * 12
_ENVOY, _PICKER, _CONTROL = "envoy", "picker", "control"


def example(name: str) -> str:
    """Return the text of an example."""
    return (EXAMPLES / name).read_text()


def with_ports(text: str, ports: Mapping[int, str]) -> str:
    """Return an example with other loopback addresses, whose places must exist."""

    def moved(found: re.Match[str]) -> str:
        return found[1] + ports[int(found[2])].rpartition(":")[2]

    return re.sub(r"(port_value: |127\.0\.0\.1:)(\d+)", moved, text)


def edited(text: str, change: Any) -> str:
    """Return a configuration after ``change`` of its document."""
    document = yaml.safe_load(text)
    change(document)
    return yaml.safe_dump(document, sort_keys=False)


def ext_proc(document: Any) -> Any:
    """Return the settings of the picker's filter."""
    return _manager(document)["http_filters"][0]["typed_config"]


def routes(document: Any) -> Any:
    """Return the routes."""
    return _manager(document)["route_config"]["virtual_hosts"][0]["routes"]


def log_sinks(document: Any) -> Any:
    """Return the access-log sinks."""
    return _manager(document)["access_log"]


def _manager(document: Any) -> Any:
    (chain,) = document["static_resources"]["listeners"][0]["filter_chains"]
    return chain["filters"][0]["typed_config"]


async def converse(post: Callable[[str, Any], Awaitable[int]]) -> list[int]:
    """Send all turns of all conversations, one after another; return the statuses."""
    statuses = []
    for turn in range(1, TURNS + 1):
        for number in range(CONVERSATIONS):
            text = f"conversation {number}: " + TURN * turn
            statuses.append(await post(GENERATE, {"text_input": text, "max_tokens": 1}))
    return statuses


def llm_d_standalone(document: Any) -> None:
    """Change the ORIGINAL_DST example into what llm-d's standalone chart sets.

    Source: llm-d/llm-d-router, ``config/charts/llm-d-router-standalone/values.yaml``, 2026-08
    (after v0.10.0; Apache License 2.0): modes, timeouts, buffers and the cluster's header. The
    chart speaks TLS to its picker; a Tidegate picker speaks plain HTTP/2.
    """
    listener, cluster = document["static_resources"]["listeners"][0], None
    listener["per_connection_buffer_limit_bytes"] = 32768
    manager = _manager(document)
    del manager["early_header_mutation_extensions"], manager["access_log"]
    manager["path_with_escaped_slashes_action"] = "UNESCAPE_AND_REDIRECT"
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]
    route["route"] |= {"timeout": "86400s", "idle_timeout": "86400s"}
    settings = ext_proc(document)
    del settings["metadata_options"], settings["failure_mode_allow"]
    settings["message_timeout"] = "1000s"
    settings["processing_mode"] = {
        "request_header_mode": "SEND",
        "response_header_mode": "SEND",
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_trailer_mode": "SEND",
    }
    cluster = document["static_resources"]["clusters"][0]
    cluster["connect_timeout"] = "1000s"
    del cluster["metadata"]


class ExistingEnvoy:
    """A static Envoy, a picker without a control server, and replicas; an async context manager.

    Args:
        config: Envoy's configuration, with the examples' ports.
        replicas: Addresses of the replicas, at most three.
        options: More options of the picker.
        fleet: The picker's fleet, with the examples' ports.
        binary: Envoy; the present one by default.
        places: Further ports of the texts, with the addresses that they stand for.
        more: Further ports of the texts, for which there are free ones.
        node: Node id of Envoy, where the configuration has none.
    """

    def __init__(
        self,
        config: str,
        replicas: Sequence[str],
        *options: str,
        fleet: str | None = None,
        binary: Path | None = None,
        places: Mapping[int, str] | None = None,
        more: Sequence[int] = (),
        node: str | None = None,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._options = options
        self._fleet = example("fleet.yaml") if fleet is None else fleet
        self._binary = binary or envoy_binary()
        self._known, self._more, self._node = places or {}, more, node
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exit_:
            run = exit_.enter_context(RunFolder.create())
            ports = exit_.enter_context(HeldPorts())
            self.address, self.picker, self.page = (ports.address() for _ in range(3))
            self.control, self.admin = ports.address(), ports.address()
            self.second = (ports.address(), ports.address())
            self.run = run
            self.places = {CLIENTS: self.address, PICKER: self.picker, CONTROL: self.control}
            self.places |= {SECOND: self.second[0], **self._known}
            self.places |= {port: ports.address() for port in self._more}
            self.places |= dict(zip(REPLICAS, self._replicas, strict=True))
            self.http = await exit_.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
            )
            self.fleet = run.write("fleet.yaml", with_ports(self._fleet, self.places))
            self.supervisor = Supervisor(run.logs)
            exit_.push_async_callback(self.supervisor.stop)
            await self._start_control()
            await self.start_picker()
            await self.start_envoy(_ENVOY, self._node)
            await wait_until(
                self._served, "the proxy", timeout_s=60, supervisors=(self.supervisor,)
            )
            self._exit = exit_.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def start_envoy(self, name: str, node: str | None, clients: str | None = None) -> None:
        """Start an Envoy; return at once.

        Args:
            name: Name of the process.
            node: Node id, where the configuration has none.
            clients: Address for clients; ``address`` if it is the first.
        """
        places = {**self.places, CLIENTS: clients or self.address}
        config = self.run.write(f"{name}.yaml", with_ports(self._config, places))
        command = envoy_command(self._binary, config, 1)
        more = ("--service-node", node) if node else ()
        await self.supervisor.start(name, (*command, *more), envoy_environment())

    async def start_picker(self) -> None:
        """Start the picker and wait until it is ready."""
        await self._start_picker(_PICKER, self.picker, self.page)

    async def start_second(self) -> None:
        """Start a second picker and wait until it is ready."""
        await self._start_picker("picker-2", *self.second)

    async def _start_picker(self, name: str, address: str, page: str) -> None:
        command = module_command("tidegate", "picker", *self._source(), "--id", name)
        command += ("--listen", address, "--metrics", page)
        await self.supervisor.start(name, (*command, *self._options), service_environment())
        await wait_until(
            lambda: http_ok(self.http, f"http://{page}/healthz"),
            "the picker",
            timeout_s=60,
            supervisors=(self.supervisor,),
        )

    def _source(self) -> tuple[str, str]:
        """Return the picker's option for where its pools come from."""
        return "--fleet", str(self.fleet)

    async def _start_control(self) -> None:
        """Start a control server, if there is one."""

    async def kill_picker(self) -> None:
        """Kill the picker."""
        await self.supervisor.kill(_PICKER)

    async def _served(self) -> str | None:
        """Wait until requests get picks: before its first health check Envoy asks no picker."""
        before = await self.picks()
        status, _ = await self.post("/v1/completions", {"model": "toy-llm", "prompt": "x"})
        picked = await self.picks() > before
        return None if status == 200 and picked else f"status {status}, picked {picked}"

    async def post(
        self,
        path: str,
        body: Any,
        headers: Mapping[str, str] | None = None,
        address: str | None = None,
    ) -> tuple[int, dict[str, str]]:
        """Post JSON, to the first Envoy by default; return status and headers of the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        url = f"http://{address or self.address}{path}"
        try:
            async with self.http.post(url, data=io.BytesIO(data), headers=sent) as answer:
                await answer.read()
                return answer.status, dict(answer.headers)
        except aiohttp.ClientConnectionError:
            return 0, {}

    async def counted(self, name: str, **labels: str) -> float:
        """Return a metric of the picker."""
        return await metric(self.http, self.page, name, **labels)

    async def picks(self) -> float:
        """Return the number of picks so far."""
        return await self.counted("tidegate_picker_picks_total")

    async def state(self) -> Any:
        """Return the picker's state."""
        async with self.http.get(f"http://{self.page}/debug/state") as answer:
            return await answer.json()


class FedEnvoy(ExistingEnvoy):
    """The same with a control server that serves clusters only, to Envoy and to the picker."""

    def _source(self) -> tuple[str, str]:
        return "--xds", self.control

    async def _start_control(self) -> None:
        self.stub = admin_pb2_grpc.AdminStub(grpc.aio.insecure_channel(self.admin))
        await self.start_control()

    async def start_control(self) -> None:
        """Start the control server, with what it has stored, and wait until it is ready."""
        command = module_command("tidegate", "xds", "--serve", "clusters")
        command += ("--fleet", str(self.fleet), "--state", str(self.run.path / "state"))
        command += ("--ads", self.control, "--admin", self.admin, "--metrics", "127.0.0.1:0")
        await self.supervisor.start(_CONTROL, command, service_environment())
        await wait_until(
            self._answers, "the control server", timeout_s=60, supervisors=(self.supervisor,)
        )

    async def kill_control(self) -> None:
        """Kill the control server."""
        await self.supervisor.kill(_CONTROL)

    async def _answers(self) -> str | None:
        try:
            await self.stub.GetStatus(admin_pb2.GetStatusRequest())
        except grpc.aio.AioRpcError as error:
            return str(error.details())
        return None

    async def status(self) -> Any:
        """Return the control server's status."""
        return await self.stub.GetStatus(admin_pb2.GetStatusRequest())
