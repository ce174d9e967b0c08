"""A picker and a gateway ask replicas that take nothing but TLS, without Envoys and Tritons."""

from __future__ import annotations

import contextlib
import shutil

import aiohttp
import pytest
import yaml

from support.certificates import Authority
from support.control_process import served
from support.fleets import endpoint, pool
from support.replicas import Replica
from support.service_process import picker_and_gateway, ready_models
from support.traffic import eventually
from tidegate_api.names import REPLICAS_HEADER

pytestmark = pytest.mark.timeout(120)

MODELS = ("m", "n")
LACKING = {"name": "n", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}


def ready(name):
    """Return the entry of a model that is loaded."""
    return {"name": name, "version": "1", "state": "READY"}


async def test_a_fleet_of_replicas_with_tls_is_known_as_any_other(tmp_path):
    """Files that come later are taken; a pool whose files never come is the only one unknown."""
    authority, stranger = Authority(tmp_path, "ca"), Authority(tmp_path, "stranger")
    pair = authority.sign("replica", "DNS:triton.test")
    own = authority.sign("own", "DNS:asks.test")
    ca = tmp_path / "late" / "ca.crt"
    ca.parent.mkdir()
    files = {"certificate": str(own.certificate), "key": str(own.key), "server_name": "triton.test"}
    replicas = (
        Replica("r1", index=(ready("m"), ready("n"))),
        Replica("r2", index=(ready("m"), LACKING)),
        Replica("r3", index=(ready("o"),)),
    )
    async with contextlib.AsyncExitStack() as stack:
        for replica in replicas:
            tls = authority.server(pair, ask_clients=True)
            await stack.enter_async_context(replica.serve(tls))
        health = {"interval": "200ms"}
        several = [endpoint(n, http=replicas[n - 1].address, grpc=None) for n in (1, 2)]
        other = [endpoint(3, http=replicas[2].address, grpc=None)]
        of_stranger = {**files, "ca": str(stranger.own.certificate)}
        fleet = {
            "pools": [
                pool(
                    "llm",
                    default=True,
                    match={"models": list(MODELS)},
                    variants=[{"name": "stable"}],
                    endpoints=several,
                    health=health,
                    upstream_tls={**files, "ca": str(ca)},
                ),
                pool(
                    "other",
                    match={"models": ["o"]},
                    variants=[{"name": "stable"}],
                    endpoints=other,
                    health=health,
                    upstream_tls=of_stranger,
                ),
            ]
        }
        file = tmp_path / "fleet.yaml"
        file.write_text(yaml.safe_dump(fleet))
        control = await stack.enter_async_context(served(file, tmp_path / "state"))
        services = await stack.enter_async_context(picker_and_gateway(control.ads))
        (picker, told), (gateway, said) = services
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def placed() -> dict[str, set[str]]:
            async with http.get(f"http://{picker['metrics']}/debug/state") as answer:
                return ready_models(await answer.json())

        async def index() -> tuple[str, dict[str, str]]:
            async with http.post(f"http://{gateway['http']}/v2/repository/index") as answer:
                rows = await answer.json(content_type=None) if answer.status == 200 else []
                states = {each["name"]: each["state"] for each in rows}
                return answer.headers[REPLICAS_HEADER], states

        away = "r1=unreachable, r2=unreachable, r3=unreachable"
        assert await index() == (f"0/3; {away}", {})

        async def both_said() -> bool:
            return all(
                {"replica_files_not_taken", "replica_not_trusted"}
                <= {each["event"] for each in events}
                for events in (told, said)
            )

        assert await eventually(both_said)
        for events in (told, said):
            reasons = {each["event"]: each.get("reason", "") for each in events}
            assert str(ca) in reasons["replica_files_not_taken"]
            assert "certificate verify failed" in reasons["replica_not_trusted"]
        assert await placed() == {"r1": set(), "r2": set(), "r3": set()}
        shutil.copy(authority.own.certificate, ca)

        async def known() -> bool:
            return await placed() == {"r1": {"m", "n"}, "r2": {"m"}, "r3": set()}

        assert await eventually(known)

        async def answered() -> bool:  # the gateway looks at its files by itself
            return await index() == ("2/3; r3=unreachable", {"m": "READY", "n": "READY"})

        assert await eventually(answered)
