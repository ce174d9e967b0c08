"""Incidents under traffic: status, log, metric, alert and runbook say what it is, and soon.

One stack of real Envoy, picker and control server over test replicas, and a real Prometheus. The
time from an incident to its detection is a bound that the documentation has; from the detection on
all must be said within ``WITHIN_S``.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

import pytest

from ext_proc.telemetry.hub import COMPLAIN_S
from monitoring.prometheus import scraping
from support.existing_envoy import CLIENTS, PICKER, REPLICAS, edited, example, ext_proc, with_ports
from support.incidents import (
    WITHIN_S,
    Paged,
    Told,
    Witness,
    positive,
    reason,
    status_of,
    stopped,
    zero,
)
from support.promql import EMPTY, Expression, alerts, panels, rules
from support.replicas import stack_over
from support.traffic import GENERATE, Traffic, admin, eventually, fresh_prompt, picker_state
from tidegate.stack import local
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.admin.v1 import admin_pb2 as api

pytestmark = pytest.mark.timeout(240)

OUTLIER = {"base_ejection": "10s", "interval": "2s", "frozen_after": "1500ms"}
LATE_S = 10.0
"""After so long a client that does not acknowledge is late."""
LOST_S = 15.0
"""Within so long a picker notices that its control server hangs."""
WELL = frozenset(
    {
        "tidegate_picker_replica_condition",
        "tidegate_picker_passes_total",
        "tidegate_picker_refusals_total",
        "tidegate_picker_errors_total",
        "tidegate_picker_proxy_answers_total",
        "tidegate_xds_found_replicas",
        "tidegate_xds_source_answers",
        "tidegate_xds_certificate_left_seconds",
        "tidegate_xds_certificate_life_seconds",
        "tidegate_xds_certificate_fault",
        "tidegate_picker_certificate_left_seconds",
        "tidegate_picker_certificate_life_seconds",
        "tidegate_picker_certificate_fault",
        "tidegate_xds_stuck_model_replicas",
        "tidegate_xds_model_operation_still_seconds",
    }
)
"""Metrics of alerts that have no series where all is well, replicas are listed and there is no TLS;
the tests of alerts and the incidents show that they work."""


def body() -> dict[str, Any]:
    """Return a short request with a prompt that is in no cache."""
    return {"text_input": fresh_prompt(64), "max_tokens": 2}


@pytest.fixture(scope="module")
def replicas() -> list[Paged]:
    """Return four replicas, which fall sick in turn."""
    return [Paged(f"r{number}") for number in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
async def stack(replicas):
    """Run one stack for all incidents."""
    more = {"outlier": {**OUTLIER, "max_ejection_percent": 50}}
    async with stack_over(*replicas, more=more) as running:
        yield running


@pytest.fixture(scope="module")
async def prometheus(http, stack, tmp_path_factory):
    """Run a Prometheus that scrapes the stack."""
    jobs = {
        "tidegate-control": {"targets": [stack.control_metrics]},
        "tidegate-picker": {"targets": stack.picker_pages},
        "tidegate-envoy": {"targets": [stack.envoy_admin], "metrics_path": "/stats/prometheus"},
    }
    with HeldPorts() as ports:
        folder = tmp_path_factory.mktemp("prometheus")
        async with scraping(http, folder, ports.address(), jobs) as running:
            yield running


@pytest.fixture(scope="module")
async def traffic(http, stack):
    """Send requests all the time; some fail while incidents last."""
    url = stack.http_url + GENERATE
    async with Traffic(http, url, body, workers=6, pause_s=0.05) as load:
        yield load


@pytest.fixture
def witness(http, stack, prometheus, traffic) -> Witness:  # noqa: ARG001 - under traffic
    """Return what looks at everything."""
    pages = {"control": stack.control_metrics, "picker": stack.picker_metrics}
    return Witness(http, pages, stack.run.logs, status_of(stack.admin_address), prometheus)


async def test_each_expression_has_series(prometheus, traffic) -> None:
    """Of recording rules and panels, on a system where all is well."""
    await traffic.more(300)
    recorded = [(each["record"], each["record"]) for each in rules() if "record" in each]
    shown = [(each.where, each.text) for each in panels() if not each.about.startswith(EMPTY)]
    assert len(recorded) + len(shown) > 40
    empty: list[str] = []

    async def filled() -> bool:
        empty[:] = [
            where for where, text in (*recorded, *shown) if not await prometheus.query(text)
        ]
        return not empty

    assert await eventually(filled), f"no series: {empty}"


async def test_each_expression_is_understood(prometheus) -> None:
    """Also those that have no series where all is well; and each metric of an alert has one."""
    for each in panels():
        await prometheus.query(each.text)
    for name, rule in alerts().items():
        await prometheus.query(rule["expr"])
        for metric in _metrics(rule["expr"]) - WELL:
            assert await prometheus.query(metric), f"{name}: {metric} has no series"


async def test_nothing_is_said_where_all_is_well(prometheus, stack) -> None:
    """No alert, and status is OK."""
    status = status_of(stack.admin_address)

    async def quiet() -> bool:
        return not await prometheus.true_alerts() and not await status()

    assert await eventually(quiet), (await prometheus.true_alerts(), await status())


def _metrics(text: str) -> set[str]:
    return {name for name, _ in Expression("", text).selectors}


@pytest.mark.parametrize(
    ("number", "condition", "word"),
    [(0, "frozen", "frozen"), (1, "dead-backend", "ejected")],
    ids=["frozen", "errors"],
)
async def test_a_sick_replica(
    http, stack, replicas, witness, record_property, number, condition, word
) -> None:
    """Frozen: detected `outlier.frozen_after` after its last sign of life; errors: by counting."""
    sick, released = replicas[number], asyncio.Event()

    async def detected() -> bool:
        found = (await picker_state(http, stack))["router"]["pools"]["llm"]["endpoints"]
        return condition in found[sick.name]["conditions"]

    async def ask() -> None:
        async with http.post(stack.http_url + GENERATE, json=body()) as answer:
            await answer.read()

    waiting: list[asyncio.Task[None]] = []
    if condition == "frozen":
        sick.gate = released
        # Several requests of one client have to stand on it.
        waiting = [asyncio.create_task(ask()) for _ in range(40)]
    else:
        sick.status = 500
    assert await eventually(detected)
    labels = {"pool": "llm", "endpoint": sick.name, "condition": condition}
    place = f'endpoint="{sick.name}",condition="{condition}",pool="llm"'
    took = await witness.told(
        Told(
            rf"replica {sick.name} of pool llm is {word}",
            ("replica_left_alone", sick.name),
            ("picker", f"tidegate_picker_replica_condition{{{place}}}", positive),
            ("TidegateReplicaLeftAlone", labels),
        )
    )
    record_property("told_after", f"{took:.1f} s")
    sick.gate, sick.status = None, 200
    released.set()
    await asyncio.gather(*waiting)


async def test_stale_telemetry(http, stack, replicas, witness, record_property) -> None:
    """A metrics page that cannot be read: detected at the second failed scrape."""
    await witness.loggable("page_not_read", "replica=r3", COMPLAIN_S)
    replicas[2].page = False

    async def detected() -> bool:
        found = (await picker_state(http, stack))["router"]["pools"]["llm"]["endpoints"]
        return "silent" in found["r3"]["conditions"]

    assert await eventually(detected)
    took = await witness.told(
        Told(
            "replica r3 of pool llm is silent",
            ("page_not_read", "r3"),
            ("picker", "tidegate_picker_telemetry_stale_endpoints", positive),
            ("TidegateTelemetryStale", {}),
        )
    )
    record_property("told_after", f"{took:.1f} s")
    replicas[2].page = True


async def test_a_refused_revision(stack, witness, record_property) -> None:
    """A certificate that is not on Envoy's machine: detected by Envoy's refusal."""
    before = stack.read_fleet()
    changed = stack.read_fleet()
    changed["listener"]["tls"] = {"certificate": "/nowhere/tls.crt", "key": "/nowhere/tls.key"}
    stack.write_fleet(changed)
    took = await witness.told(
        Told(
            r"was refused by envoy-1 \(SDS",
            ("xds_nack", "envoy-1"),
            reason("not-in-force"),
            ("TidegateChangeNotInForce", {}),
        )
    )
    record_property("told_after", f"{took:.1f} s")
    stack.write_fleet(before)
    assert await eventually(lambda: _none(stack, "refused"))


async def _none(stack, words: str) -> bool:
    lines = await status_of(stack.admin_address)()
    return not any(words in line for line in lines)


async def test_a_mute_envoy(stack, witness, record_property) -> None:
    """It acknowledges nothing: detected 10 s after a change."""
    with stopped(stack.pid(local.ENVOY)):
        async with admin(stack) as stub:
            await stub.SetDropOverload(api.SetDropOverloadRequest(pool="llm", percent=1))
        took = await witness.told(
            Told(
                "envoy envoy-1 has not acknowledged a change",
                ("status_reason", "envoy-1"),
                reason("late"),
                ("TidegateClientMute", {}),
            ),
            LATE_S + WITHIN_S,
        )
    record_property("told_after", f"{took - LATE_S:.1f} s")
    async with admin(stack) as stub:
        await stub.SetDropOverload(api.SetDropOverloadRequest(pool="llm", percent=0))
    assert await eventually(lambda: _none(stack, "acknowledged"))


async def test_a_full_disk(stack, witness, record_property) -> None:
    """Nothing can be stored: detected at the first write."""
    pid = stack.pid(local.CONTROL_SERVER)
    files = (stack.run.path / "state").iterdir()
    size = max(path.stat().st_size for path in files)
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    async with admin(stack) as stub:
        await stub.SetDraining(api.SetDrainingRequest(endpoint="r4", draining=True))
        took = await witness.told(
            Told(
                "revisions cannot be stored",
                ("store_not_writable", ""),
                ("control", "tidegate_xds_store_writable", zero),
                ("TidegateStoreNotWritable", {}),
            )
        )
        record_property("told_after", f"{took:.1f} s")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, endless)
        await stub.SetDraining(api.SetDrainingRequest(endpoint="r4", draining=False))
    assert await eventually(lambda: _none(stack, "cannot be stored"))


async def test_a_hung_control_server(stack, witness, traffic, record_property) -> None:
    """It takes connections and answers nothing: pickers notice within 15 s. Requests go on."""
    with stopped(stack.pid(local.CONTROL_SERVER)):
        failed = len(traffic.failures)
        took = await witness.told(
            Told(
                "did not answer in time; it may be stopped",
                ("control_server_lost", ""),
                ("control", "up", zero),
                ("TidegateControlServerDown", {"job": "tidegate-control"}),
            ),
            LOST_S + WITHIN_S,
        )
        assert {"alertname": "TidegateControlServerLost"}.items() <= (
            await _alert(witness, "TidegateControlServerLost")
        ).items()
        assert len(traffic.failures) == failed
    record_property("told_after", f"{took - LOST_S:.1f} s")
    await stack.wait_synced()


async def _alert(witness: Witness, name: str) -> dict[str, str]:
    assert witness.prometheus is not None
    found: list[dict[str, str]] = []

    async def true() -> bool:
        found[:] = await witness.prometheus.true_alerts()
        return any(each["alertname"] == name for each in found)

    assert await eventually(true, WITHIN_S), found
    return next(each for each in found if each["alertname"] == name)


async def test_a_dead_picker(stack, witness, record_property) -> None:
    """Killed: detected by the end of its connection."""
    await stack.kill_picker()
    took = await witness.told(
        Told(
            "no picker is connected",
            ("status_reason", "picker-missing"),
            reason("picker-missing"),
            ("TidegatePickerMissing", {}),
        )
    )
    await _alert(witness, "TidegatePickerDown")
    record_property("told_after", f"{took:.1f} s")
    await stack.start_picker()


async def test_a_foreign_envoy_that_passes_all(
    http, stack, replicas, witness, record_property
) -> None:
    """Its filter sends what no picker can use: detected at its first requests."""

    def change(document: Any) -> None:
        ext_proc(document)["processing_mode"]["request_header_mode"] = "SKIP"

    with HeldPorts() as ports:
        clients = ports.address()
        places = {CLIENTS: clients, PICKER: stack.addresses.picker}
        places |= dict(zip(REPLICAS, (each.address for each in replicas), strict=False))
        text = with_ports(edited(example("override-host.yaml"), change), places)
        config = stack.run.write("foreign.yaml", text)
        command = (*envoy_command(envoy_binary(), config, 1), "--service-node", "foreign")
        await stack._supervisor.start("foreign", command, envoy_environment())

        async def answers() -> bool:
            async with http.post(f"http://{clients}{GENERATE}", json=body()) as answer:
                return answer.status == 200

        async def listens() -> bool:
            with contextlib.suppress(OSError):
                return await answers()
            return False

        assert await eventually(listens)
        stop = asyncio.Event()

        async def ask() -> None:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    await answers()
                await asyncio.sleep(0.05)

        task = asyncio.create_task(ask())
        try:
            took = await witness.told(
                Told(
                    r"requests got no pick in the last minute: too-late",
                    ("request_passed", "too-late"),
                    ("picker", 'tidegate_picker_passes_total{pool="",reason="too-late"}', positive),
                    ("TidegateRequestsWithoutPick", {"reason": "too-late"}),
                )
            )
        finally:
            stop.set()
            await task
            await stack._supervisor.kill("foreign")
    record_property("told_after", f"{took:.1f} s")
