"""What is said of an incident: by status, log, metrics and alerts, each within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import grpc
from aiohttp import web

from support.identities import LOCAL, Machines, Presented
from support.promql import ROOT, alerts
from support.replicas import Replica
from support.traffic import eventually
from tidegate.cli.client import READ_TIMEOUT_S, explain
from tidegate.stack.local import CONTROL_SERVER, PICKER
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.spawning import service_environment
from tidegate.stack.processes.supervisor import Supervisor
from tidegate.stack.runfolder import RunFolder
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_common.children import module_command
from tidegate_common.tls.roles import TRUST_DOMAIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

WITHIN_S = 10.0
"""An incident is named everywhere so many seconds after its detection."""
RUNBOOKS = ROOT / "docs/how-to/runbooks.md"
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$")


class Alerts(Protocol):
    """Something that evaluates the alerts."""

    async def true_alerts(self) -> list[dict[str, str]]:
        """Return the labels of the alerts whose expression is true."""


@dataclass
class Paged(Replica):
    """A replica with a metrics page as Triton has it."""

    page: bool = True
    """Whether the page can be read."""

    def endpoint(self, **more: Any) -> dict[str, Any]:
        """Return the replica as an endpoint of a fleet file."""
        return super().endpoint(metrics=f"http://{self.address}/metrics", **more)

    async def _ready(self, request: web.Request) -> web.Response:
        if request.path != "/metrics":
            return await super()._ready(request)
        text = 'nv_inference_pending_request_count{model="toy-llm",version="1"} 0\n'
        return web.Response(text=text) if self.page else web.Response(status=503)


@dataclass
class Told:
    """What must be said of an incident."""

    status: str
    """Expression of a reason of the verdict, or of the error of the command line."""
    log: tuple[str, str]
    """An event and what its line contains."""
    metric: tuple[str, str, Callable[[float], bool]]
    """A page, a series with labels as the page writes them, and whether a value says it."""
    alert: tuple[str, Mapping[str, str]]
    """An alert, and labels of it."""


@dataclass
class Witness:
    """Looks at all that a system says.

    Args:
        http: Client for pages.
        pages: Addresses of the pages by name.
        logs: Folder of the logs.
        status: Returns what ``tidegate status`` tells.
        whole_logs: What was logged before counts, too.
        prometheus: Evaluates the alerts; ``None`` = only that the alert's expression has the metric
            is looked at.
    """

    http: aiohttp.ClientSession
    pages: Mapping[str, str]
    logs: Path
    status: Callable[[], Any]
    prometheus: Alerts | None = None
    whole_logs: bool = False
    missing: set[str] = field(default_factory=set)
    _read: dict[Path, int] = field(default_factory=dict)
    """Sizes of the logs when the look began."""

    def __post_init__(self) -> None:
        """Pass over what was logged before."""
        if self.whole_logs:
            return
        self._read = {path: path.stat().st_size for path in self.logs.iterdir()}

    async def told(self, what: Told, within_s: float = WITHIN_S) -> float:
        """Wait until all is said; return after how many seconds."""
        begun = time.monotonic()

        async def look() -> bool:
            self.missing = {each async for each in self._missing(what)}
            return not self.missing

        assert await eventually(look, within_s), f"nothing says it: {sorted(self.missing)}"
        assert f"### {what.alert[0]}\n" in RUNBOOKS.read_text()
        took = time.monotonic() - begun
        sys.stdout.write(f"{what.alert[0]}: told after {took:.1f} s\n")  # pytest -rP shows it
        return took

    async def loggable(self, event: str, words: str, every_s: float) -> None:
        """Wait if an event was logged that is logged at most once in ``every_s``.

        A busy machine can cause by itself what a test is about to cause.
        """
        texts = [path.read_text(errors="replace") for path in self.logs.iterdir()]
        lines = [line for text in texts for line in text.splitlines() if event in line]
        if any(words in line for line in lines):
            await asyncio.sleep(every_s)

    async def _missing(self, what: Told) -> Any:
        lines = await self.status()
        if not any(re.search(what.status, line) for line in lines):
            yield f"status: {lines}"
        event, words = what.log
        if not any(event in line and words in line for line in self._lines()):
            yield f"log: {what.log}"
        page, series, holds = what.metric
        if not any(map(holds, values := await self._values(page, series))):
            yield f"metric: {series} {values}"
        name, labels = what.alert
        if self.prometheus is None:
            if re.split(r"[{ ]", series)[0] not in alerts()[name]["expr"]:
                yield f"alert: {name} does not look at {series}"
            return
        wanted = {"alertname": name, **labels}
        found = await self.prometheus.true_alerts()
        if not any(wanted.items() <= each.items() for each in found):
            yield f"alert: {wanted}, but {[each['alertname'] for each in found]}"

    def _lines(self) -> Iterable[str]:
        for path in self.logs.iterdir():
            text = path.read_bytes()[self._read.get(path, 0) :]
            yield from text.decode(errors="replace").splitlines()

    async def _values(self, page: str, series: str) -> list[float]:
        """Return the values of a series; ``up`` is 1 where the page answers, else 0."""
        name, _, labels = series.rstrip("}").partition("{")
        wanted = set(filter(None, labels.split(",")))
        limit = aiohttp.ClientTimeout(total=1)
        try:
            at = self.pages[page]
            url = f"{at if '://' in at else f'http://{at}'}/metrics"
            async with self.http.get(url, timeout=limit) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return [0.0] if name == "up" else []
        if name == "up":
            return [1.0]
        found = filter(None, map(_SAMPLE.match, text.splitlines()))
        return [
            float(each[3])
            for each in found
            if each[1] == name and wanted <= set((each[2] or "").split(","))
        ]


def reason(kind: str) -> tuple[str, str, Callable[[float], bool]]:
    """Return that the verdict has a kind of reasons, as a metric."""
    return "control", f'tidegate_xds_reasons{{kind="{kind}"}}', positive


def positive(value: float) -> bool:
    """Return whether a count is there."""
    return value > 0


def zero(value: float) -> bool:
    """Return whether nothing is there."""
    return value == 0


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def status_of(address: str, tls: grpc.ChannelCredentials | None = None) -> Callable[[], Any]:
    """Return a function that tells what ``tidegate status`` does: the reasons, or its error."""

    async def status() -> list[str]:
        async with _channel(address, tls) as channel:
            stub = admin_pb2_grpc.AdminStub(channel)
            try:
                found = await stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=READ_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return [explain(error, address).message]  # type: ignore[arg-type]
            return [f"{found.verdict}: {each}" for each in found.reasons]

    return status


def _channel(address: str, tls: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, tls)


@dataclass
class Pair:
    """A control server and a picker, without Envoy."""

    supervisor: Supervisor
    logs: Path
    state: Path
    ads: str
    admin: str
    pages: Mapping[str, str]


@contextlib.asynccontextmanager
async def control_and_picker(
    control: Sequence[str] = (), picker: Sequence[str] = (), ready: Callable[[str], Any] = status_of
) -> AsyncIterator[Pair]:
    """Run both over one replica until they know each other.

    Args:
        control: Further options of the control server.
        picker: Further options of the picker.
        ready: Returns, for the admin address, a function that tells the status.
    """
    async with contextlib.AsyncExitStack() as exit_:
        replica = await exit_.enter_async_context(Paged("r1").serve())
        run, ports = exit_.enter_context(RunFolder.create()), exit_.enter_context(HeldPorts())
        ads, admin, page, listen, picker_page = (ports.address() for _ in range(5))
        pool = {
            "name": "llm",
            "default": True,
            "match": {"models": ["toy-llm"]},
            "endpoints": [{"id": "r1", "http": replica.address}],
        }
        fleet = {
            "listener": {"address": ports.address()},
            "pickers": {"addresses": [listen]},
            "pools": [pool],
        }
        file = run.write("fleet.yaml", json.dumps(fleet))
        state = run.path / "state"
        state.mkdir()
        supervisor = Supervisor(run.logs)
        exit_.push_async_callback(supervisor.stop)
        await supervisor.start(
            CONTROL_SERVER,
            (
                *module_command("xds_server", "--fleet", str(file), "--ads", ads),
                *("--admin", admin, "--metrics", page, "--state", str(state), *control),
            ),
            service_environment(),
        )
        await supervisor.start(
            PICKER,
            (
                *module_command("ext_proc", "--listen", listen, "--xds", ads),
                *("--metrics", picker_page, "--id", "picker-1", *picker),
            ),
            service_environment(),
        )
        status = ready(admin)

        async def connected() -> bool:
            lines = await status()
            words = ("picker is connected", "control server at")
            return not any(word in line for word in words for line in lines)

        assert await eventually(connected), await status()
        pages = {"control": page, "picker": picker_page}
        yield Pair(supervisor, run.logs, state, ads, admin, pages)


LIFE_DAYS, LEFT_DAYS = 50, 5


@contextlib.asynccontextmanager
async def aging(folder: Path) -> AsyncIterator[tuple[Pair, Witness, Presented]]:
    """Run a control server and a picker with certificates of which a tenth of their life is left.

    Yields the services, what looks at them, and the identity of a viewer.
    """
    machines = Machines(folder)

    def options(name: str) -> list[str]:
        uris = [f"URI:{TRUST_DOMAIN}/{name}{each}" for each in ("", "/picker-1")]
        names = (*uris, f"DNS:{name}.tidegate", *LOCAL)
        made = machines.authority.aged(name, *names, life_days=LIFE_DAYS, left_days=LEFT_DAYS)
        files = ("--tls-cert", str(made.certificate), "--tls-key", str(made.key))
        return [*files, "--tls-ca", str(machines.authority.own.certificate)]

    viewer = machines.client("viewer")
    trusted = viewer.channel_credentials()
    connector = aiohttp.TCPConnector(ssl=viewer.context())
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        control_and_picker(
            options("control"), options("picker"), lambda address: status_of(address, trusted)
        ) as pair,
    ):
        pages = {name: f"https://{address}" for name, address in pair.pages.items()}
        status = status_of(pair.admin, trusted)
        yield pair, Witness(http, pages, pair.logs, status, whole_logs=True), viewer


def certificates_told(pair: Pair) -> Iterator[Told]:
    """Yield what must be said of both certificates that end soon."""

    def left(seconds: float) -> bool:
        return LEFT_DAYS - 1 < seconds / 86_400 < LEFT_DAYS

    for owner, page, prefix in (
        ("the control server", "control", "tidegate_xds"),
        ("picker picker-1", "picker", "tidegate_picker"),
    ):
        yield Told(
            f"certificate of {owner} ends in {LEFT_DAYS} days",
            ("certificate_ends_soon", f"{page}.crt"),
            (page, f"{prefix}_certificate_left_seconds", left),
            ("TidegateCertificateEndsSoon", {"instance": pair.pages[page]}),
        )
    yield Told(
        "certificate of the control server",
        ("status_reason", "kind=certificate"),
        reason("certificate"),
        ("TidegateCertificateOfClientEndsSoon", {}),
    )
