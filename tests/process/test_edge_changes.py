"""What a change of each field of the edge costs open connections is what the table says."""

from __future__ import annotations

import asyncio
import copy

import pytest

from support.edge_stack import EdgeStack
from support.sockets import Raw, head
from support.tokens import key_set
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts
from xds_server.fleet.channels import drains
from xds_server.fleet.model.fleet import Fleet

pytestmark = pytest.mark.timeout(180)

INFER = "/v2/models/toy-llm/infer"
FILTERS = "type.googleapis.com/envoy.extensions.filters.http."
MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network"
    ".http_connection_manager.v3.HttpConnectionManager"
)
CLUSTER = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
RBAC = FILTERS + "rbac.v3.RBAC"
FIRST = {
    "jwt": [{"name": "tests", "issuer": "tests", "jwks": key_set()}],
    "cors": {"origins": ["https://a.example"]},
    "compression": {"min_bytes": 30},
    "rate_limit": {"requests": 100_000},
    "http_filters": {
        "before": [{"name": "a", "config": {"@type": RBAC}}],
        "after": [{"name": "b", "config": {"@type": RBAC}}],
    },
}


def changes(further):
    """Return pairs of a field and its new value, each on top of the one before."""
    rules = {"@type": RBAC, "rules_stat_prefix": "x"}
    rbac = {"@type": RBAC + "PerRoute", "rbac": {}}
    after = [{"name": "b", "config": rules}]
    return (
        ("jwt.0.issuer", "others"),
        ("jwt.0.audiences", ["x"]),
        ("jwt.0.header", "x-token"),
        ("jwt.0.forward", True),
        ("jwt.0.leeway", "5s"),
        ("jwt.0.jwks", key_set(b"another secret of thirty-two bytes")),
        ("cors.origins", ["https://b.example"]),
        ("cors.expose", ["x-a"]),
        ("cors", None),
        ("compression.min_bytes", 99),
        ("compression.content_types", ["text/plain"]),
        ("rate_limit.requests", 200_000),
        ("http_filters.before.0.config", rules),
        ("http_filters.after.0.config", rules),
        ("hosts", [{"names": ["a.example"], "pools": ["llm"]}]),
        ("pools", ["llm"]),
        ("vision.jwt", {"any_of": ["tests"]}),
        ("vision.jwt.audiences", ["x"]),
        ("vision.http_filters", {"b": rbac}),
        ("vision.connections", {"max_requests": 9}),
        ("vision.cluster_patch", [{"@type": CLUSTER, "connect_timeout": "2s"}]),
        ("further", [{"name": "inner", "address": further}]),
        ("further.0.pools", ["llm"]),
        ("further", []),
        ("vision.rate_limit", {"requests": 9}),
        ("vision.rate_limit.requests", 8),
        ("vision.rate_limit", None),
        ("compression", None),
        ("compression", {"min_bytes": 30}),
        ("rate_limit", None),
        ("cors", {"origins": ["https://a.example"]}),
        # What stands in the listener and nowhere else.
        ("connections", {"h2_keepalive": "9s"}),
        ("connections.idle", "99s"),
        ("compression.algorithms", ["gzip", "brotli"]),
        ("http_filters.before", []),
        ("vision.http_filters", {}),
        ("http_filters.after", [*after, {"name": "c", "config": {"@type": RBAC}}]),
        ("patch", [{"@type": MANAGER, "server_name": "a"}]),
        ("patch.0.server_name", "b"),
        ("vision.jwt", None),
        ("jwt", []),
    )


def changed(fleet, path, value):
    """Return a fleet with another value of a field of the listener, or of the pool `vision`."""
    made = copy.deepcopy(fleet)
    *outer, last = path.split(".")
    place = made["pools"][1] if outer and outer[0] == "vision" else made["listener"]
    for name in outer[outer[:1] == ["vision"] :]:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[last] = value
    return made


async def ask(raw):
    """Send a request; return whether the connection goes on."""
    await raw.send(head(INFER, "content-length: 2"), b"{}")
    return await answer(raw)


async def answer(raw):
    """Read a good answer; return whether the connection goes on."""
    top = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 60)).decode().lower()
    assert top.startswith("http/1.1 200")
    length = int(top.split("content-length: ")[1].split("\r\n")[0])
    await asyncio.wait_for(raw.reader.readexactly(length), 60)
    return "connection: close" not in top


async def test_a_change_drains_what_the_table_says(demo_extra):  # noqa: ARG001 - skips first
    """One stream is open throughout and ends well; a kept connection ends where the table says."""
    with HeldPorts() as ports:
        further = ports.address()
        async with EdgeStack(listener=FIRST) as stack, Raw(stack.listener) as streaming:
            ends = stack.llm.gate = asyncio.Event()
            await streaming.send(head(INFER, "content-length: 2"), b"{}")

            async def held() -> bool:
                return len(stack.llm.seen) == 1

            assert await eventually(held)
            stack.llm.gate = None
            fleet, wrong, kept = stack.first_fleet(), [], Raw(stack.listener)
            await kept.__aenter__()
            for path, value in changes(further):
                assert await ask(kept), path
                after = changed(fleet, path, value)
                said = drains(Fleet.model_validate(fleet), Fleet.model_validate(after))
                # A further listener that goes takes its own connections along.
                expected = set(said) - {"listener.further"}
                await stack.apply(after)
                fleet, goes_on = after, True
                for _ in range(1000 if expected else 2):  # until it drains
                    goes_on = await ask(kept)
                    if not goes_on:
                        break
                    await asyncio.sleep(0.05)
                if goes_on == bool(expected):
                    wrong.append((path, value, expected))
                if not goes_on:
                    kept.writer.close()
                    kept = Raw(stack.listener)
                    await kept.__aenter__()
            kept.writer.close()
            assert wrong == []
            ends.set()
            await answer(streaming)
