"""A whole stack with TLS and certificates of both sides on every connection of services."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import grpc
import orjson

from bench.load.upstream import instant_upstreams
from support.certificates import Pair
from support.delayed import delayed
from support.replicas import PATIENT
from tidegate.stack.envoy import (
    BootstrapTls,
    envoy_binary,
    envoy_command,
    envoy_environment,
    render_bootstrap,
    secrets_of,
)
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.processes.waiting import wait_until
from tidegate.stack.runfolder import RunFolder
from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1 import admin_pb2_grpc
from tidegate_common.children import module_command
from tidegate_common.tls.roles import TRUST_DOMAIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from support.identities import Machines, Presented

GENERATE = "/v2/models/toy-llm/generate"
SERVERS = ("control", "picker", "envoy", "gateway")
LOCAL = ("DNS:localhost", "IP:127.0.0.1")


class Stack(NamedTuple):
    """Addresses of a running stack, and clients of it."""

    machines: Machines
    http: aiohttp.ClientSession
    listener: str
    ads: str
    admin: str
    control_page: str
    picker: str
    picker_page: str
    envoy_admin: str
    run: RunFolder
    viewer: Presented
    operators: str = ""
    """``ip:port`` of the listener for operators; empty = there is none."""
    other_page: str = ""
    """Page of the second picker; empty = there is none."""
    supervisor: Supervisor | None = None

    async def ask(self) -> int:
        """Send a request through Envoy; return the status."""
        body = {"text_input": "hello", "max_tokens": 1}
        async with self.http.post(f"http://{self.listener}{GENERATE}", json=body) as answer:
            await answer.read()
            return answer.status

    async def status(self) -> api.GetStatusResponse:
        """Return the control server's status."""
        async with self.viewer.channel(self.admin) as channel:
            return await admin_pb2_grpc.AdminStub(channel).GetStatus(api.GetStatusRequest())

    async def picker_state(self, page: str = "") -> dict[str, Any]:
        """Return a picker's debug page, by default the first one's."""
        url = f"https://{page or self.picker_page}/debug/state"
        async with self.http.get(url, ssl=self.viewer.context()) as answer:
            return orjson.loads(await answer.read())

    async def handshakes(self, cluster: str) -> int:
        """Return how many TLS connections Envoy has made to a cluster."""
        name = f"cluster.{cluster}.ssl.handshake"
        url = f"http://{self.envoy_admin}/stats?filter={name}"
        async with self.http.get(url) as answer:
            text = await answer.text()
        return sum(int(line.rpartition(":")[2]) for line in text.splitlines() if name in line)


def sign(machines: Machines, name: str) -> Pair:
    """Make or renew a machine's certificate and key, under names that stay."""
    folder = machines.folder / name
    folder.mkdir(exist_ok=True)
    pair = machines.authority.sign(
        f"new-{name}",
        *(f"URI:{TRUST_DOMAIN}/{name}{each}" for each in ("", "/p1", "/p2")),
        f"DNS:{name}.tidegate",
        *LOCAL,
    )
    own = Pair(folder / "tls.crt", folder / "tls.key")
    pair.certificate.replace(own.certificate)
    pair.key.replace(own.key)
    return own


def flags(machines: Machines, name: str) -> list[str]:
    """Return the options of a service with its identity."""
    folder = machines.folder / name
    ca = str(machines.authority.own.certificate)
    return [
        *("--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key")),
        *("--tls-ca", ca, "--log-format", "json"),
    ]


@contextlib.asynccontextmanager
async def _links(
    ports: HeldPorts, delay_s: float | None, *, apart: bool
) -> AsyncIterator[list[tuple[str, ...]]]:
    """Yield the options of two pickers that reach each other with a delay; ``None`` = of one."""
    async with contextlib.AsyncExitStack() as exit_:
        if delay_s is None or apart:
            yield [()] if delay_s is None else [(), ()]
            return
        heard = [ports.address() for _ in range(2)]
        far = [await exit_.enter_async_context(delayed(each, delay_s)) for each in heard]
        members = ("--group-members", ",".join(far))
        yield [("--group-listen", each, *members) for each in heard]


async def _start_pickers(
    supervisor: Supervisor,
    places: Iterable[tuple[str, str, tuple[str, ...]]],
    common: tuple[str, ...],
) -> None:
    """Start a picker for each address, page and options of its group."""
    for number, (at, page, group) in enumerate(places, 1):
        await supervisor.start(
            "picker" if number == 1 else f"picker-{number}",
            (
                *module_command("ext_proc", "--listen", at, "--metrics", page, *group, *common),
                *("--id", f"p{number}", "--tls-server-name", "control.tidegate"),
            ),
            service_environment(),
        )


@contextlib.asynccontextmanager
async def secured_stack(
    machines: Machines,
    transport: str,
    *,
    max_age_s: int = 3600,
    upstreams: Sequence[str] = (),
    pool: Mapping[str, Any] | None = None,
    log_level: str = "info",
    gateway: bool = False,
    links_s: float | None = None,
    first: bool = False,
    apart: bool = False,
) -> AsyncIterator[Stack]:
    """Run control server, picker and Envoy, each with a certificate of its own.

    Args:
        machines: Their authority.
        transport: That of the picker.
        max_age_s: Seconds that a connection lives.
        upstreams: Addresses of replicas; default: two that answer at once.
        pool: Further fields of the pool ``llm``.
        log_level: Lowest level that control server and picker log.
        gateway: Whether there is a gateway, and a listener for operators.
        links_s: Delay of the links between two pickers that are a group, seconds; ``None`` = there
            is one picker.
        first: Whether Envoy asks the first picker before the other.
        apart: The two pickers are no group, and share nothing.
    """
    for name in SERVERS:
        sign(machines, name)
    ca = machines.authority.own.certificate
    async with contextlib.AsyncExitStack() as exit_:
        replicas = upstreams or await exit_.enter_async_context(instant_upstreams(2))
        run, ports = exit_.enter_context(RunFolder.create()), exit_.enter_context(HeldPorts())
        listener, ads, admin, page, picker, picker_page, envoy_admin = (
            ports.address() for _ in range(7)
        )
        http = await exit_.enter_async_context(aiohttp.ClientSession())
        supervisor = Supervisor(run.logs)
        stack = Stack(
            machines,
            http,
            listener,
            ads,
            admin,
            page,
            picker,
            picker_page,
            envoy_admin,
            run,
            machines.client("viewer"),
            ports.address() if gateway else "",
            "" if links_s is None else ports.address(),
            supervisor,
        )
        other = "" if links_s is None else ports.address()
        grouped = await exit_.enter_async_context(_links(ports, links_s, apart=apart))
        exit_.push_async_callback(supervisor.stop)
        envoy = machines.folder / "envoy"
        tls = {"certificate": str(envoy / "tls.crt"), "key": str(envoy / "tls.key"), "ca": str(ca)}
        fleet = {
            "listener": {"address": listener, "debug_headers": links_s is not None},
            "pickers": {
                "addresses": [picker, *filter(None, [other])],
                "timeout": PATIENT,
                "tls": {**tls, "server_name": "picker.tidegate"},
            },
            "pools": [
                {
                    "name": "llm",
                    "default": True,
                    "match": {"models": ["toy-llm"]},
                    "endpoints": [{"id": f"u{n}", "http": at} for n, at in enumerate(replicas)],
                    "health": {"interval": "1s", "timeout": PATIENT},
                    **(pool or {}),
                }
            ],
        }
        at = [ports.address() for _ in range(5)] if gateway else []
        if gateway:
            files = {"certificate": tls["certificate"], "key": tls["key"], "client_ca": str(ca)}
            fleet["gateway"] = {
                "http": at[:1],
                "grpc": at[1:2],
                "tls": {**tls, "server_name": "localhost"},
                "operators": {"http": at[2:3], "grpc": at[3:4]},
            }
            further = {"name": "ops", "address": stack.operators, "operators": True, "tls": files}
            fleet["listener"] = {"address": listener, "further": [further]}
        file = run.write("fleet.yaml", orjson.dumps(fleet).decode())
        age = ("--tls-max-age", str(max_age_s), "--log-level", log_level)
        await supervisor.start(
            "control",
            (
                *module_command("xds_server", "--fleet", str(file), "--ads", ads),
                *("--admin", admin, "--metrics", page, *flags(machines, "control"), *age),
                *("--state", str(run.path / "state")),
            ),
            service_environment(),
        )
        common = (*("--xds", ads, "--transport", transport), *flags(machines, "picker"), *age)
        places = zip((picker, other), (picker_page, stack.other_page), grouped, strict=False)
        await _start_pickers(supervisor, places, common)
        if gateway:
            options = zip(("http", "grpc", "admin", "admin-grpc", "metrics"), at, strict=True)
            await supervisor.start(
                "gateway",
                (
                    *module_command("gateway", "--xds", ads, "--id", "g1", "--admin-by-envoy"),
                    *(word for name, each in options for word in (f"--{name}", each)),
                    *("--tls-server-name", "control.tidegate", *flags(machines, "gateway")),
                ),
                service_environment(),
            )
        bootstrap = BootstrapTls(
            envoy / "tls.crt", envoy / "tls.key", ca, run.path, "control.tidegate"
        )
        for name, text in secrets_of(bootstrap).items():
            run.write(name, text)
        own = picker if first else ""
        text = render_bootstrap("e1", "test", ads, envoy_admin, "delta", pickers=own, tls=bootstrap)
        config = run.write("envoy.yaml", text)
        await supervisor.start(
            "envoy", envoy_command(envoy_binary(), config, 1), envoy_environment()
        )

        kinds = [
            "envoy",
            *(["gateway"] if gateway else []),
            "picker",
            *(["picker"] if other else []),
        ]

        async def serving() -> str | None:
            try:
                status = await stack.status()
                found = sorted(each.kind for each in status.clients)
                states = {view.state for each in status.clients for view in each.types}
                if found != kinds or states != {"SYNCED"}:
                    return f"{found} {states} {[each.reason for each in status.refused]}"
                answered = await stack.ask()
                state = await stack.picker_state()
            except (grpc.aio.AioRpcError, aiohttp.ClientError) as error:
                return str(error)
            picked = state["feedback"]["entries"].get("good", 0)
            return None if answered == 200 and picked else f"{answered} {state['feedback']}"

        await wait_until(serving, "the stack", timeout_s=60, supervisors=(supervisor,))
        yield stack
