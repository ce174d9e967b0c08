"""Weights over runtime layers: under load, with an Envoy of an older bootstrap beside a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from ext_proc.routing.pipeline.filters import session_point
from support.in_process_stack import GENERATE, Flow, InProcessStack
from tidegate.stack.envoy import envoy_binary, envoy_command, envoy_environment, render_bootstrap
from tidegate.stack.processes.ports import HeldPorts
from tidegate.stack.processes.waiting import wait_until
from tidegate_api.names import ROUTE_TYPE, SERVED_BY_HEADER, WEIGHT_LAYERS

pytestmark = pytest.mark.timeout(120)

SPLITS = ((100, 0), (50, 50), (0, 1), (1_716_049, 283_953), (1, 99), (90, 10))
"""Weights of both variants, one of them as a rollout draws them."""
SESSIONS = [f"session-{number}" for number in range(20)]


class EnvoyOf020(InProcessStack):
    """A stack whose Envoy has the bootstrap that 0.2.0 printed; only addresses are replaced."""

    def bootstrap(self) -> str:
        text = Path(__file__).with_name("envoy-bootstrap-0.2.0.yaml").read_text()
        for written, used in ((19000, self.envoy_admin), (18000, self.ads_address)):
            text = text.replace(f": {written}\n", f": {used.rpartition(':')[2]}\n")
        return text


def older_bootstrap(stack: InProcessStack, admin: str) -> str:
    """Return the bootstrap of an Envoy that knows no layers of weights."""
    text = render_bootstrap("envoy-2", "test", stack.ads_address, admin, stack.protocol)
    bootstrap = yaml.safe_load(text)
    runtime = bootstrap["layered_runtime"]
    runtime["layers"] = [one for one in runtime["layers"] if one["name"] not in WEIGHT_LAYERS]
    return yaml.safe_dump(bootstrap)


async def served(listener: str, session: str) -> str:
    """Return the replica that serves a session, over a connection of its own."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"http://{listener}{GENERATE}",
            json={"text_input": "a", "max_tokens": 1},
            headers={"x-session-id": session},
        ) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return answer.headers[SERVED_BY_HEADER]


def weighted(dump: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the weighted draws of an Envoy's routes."""
    return [
        route["route"]["weighted_clusters"]
        for config in dump["configs"]
        for host in config["route_config"]["virtual_hosts"]
        for route in host["routes"]
        if "weighted_clusters" in route.get("route", {})
    ]


@pytest.mark.parametrize(
    ("kind", "protocol"), [(EnvoyOf020, "delta"), (InProcessStack, "sotw")], ids=["0.2.0", "sotw"]
)
async def test_both_bootstraps_draw_alike_while_weights_change(
    kind: type[InProcessStack], protocol: str
) -> None:
    """The new Envoy gets one layer per change, the older one routes; no request fails."""
    async with kind(protocol) as stack, Flow(stack.listener) as flow:
        with HeldPorts() as ports:
            admin = ports.address()
            config = stack.run.write("envoy-2.yaml", older_bootstrap(stack, admin))
            # Both Envoys accept connections at the one address of the listener.
            command = envoy_command(envoy_binary(), config, 1)
            await stack.supervisor.start("envoy-2", command, envoy_environment())

            async def both() -> str | None:
                seen = [c for c in stack.ads.clients() if c.kind == "envoy"]
                states = {view.state for client in seen for view in client.types}
                return None if len(seen) == 2 and states == {"SYNCED"} else f"{states}"

            await wait_until(both, "two Envoys", timeout_s=60, supervisors=(stack.supervisor,))
        fleet = stack.first_fleet()
        fleet["listener"]["debug_headers"] = True
        await stack.apply(fleet)
        canary = stack.upstreams[2]
        for stable, share in SPLITS:
            for variant, weight in zip(fleet["pools"][0]["variants"], (stable, share), strict=True):
                variant["weight"] = weight
            before = stack.ads.in_force("envoy").version(ROUTE_TYPE)
            change = await stack.apply(fleet)
            late = sum(each.state == "STALLED" for each in change.outcome.problems)
            assert (change.outcome.state, change.outcome.acked + late) == ("done", 3), change
            assert set(change.outcome.channels) == {"RTDS", "RDS", "POOL"}
            assert stack.ads.in_force("envoy").version(ROUTE_TYPE) == before
            for session in SESSIONS:
                drawn = session_point(session, stable + share) >= stable
                for _ in range(2):  # each on one of the two Envoys
                    assert (await served(stack.listener, session) == canary) == drawn
        new = weighted(await stack.envoy_page("config_dump?resource=dynamic_route_configs"))
        assert all(split["runtime_key_prefix"] for split in new)
        async with stack.http.get(
            f"http://{admin}/config_dump?resource=dynamic_route_configs"
        ) as page:
            old = weighted(await page.json(content_type=None))
        assert {tuple(one["weight"] for one in split["clusters"]) for split in old} == {(90, 10)}
        assert not any("runtime_key_prefix" in split for split in old)
        await flow.reaches(100)
    assert not flow.wrong
