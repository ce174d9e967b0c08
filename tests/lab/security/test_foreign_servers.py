"""A picker believes no control server but its own."""

from __future__ import annotations

import asyncio

import pytest

from ext_proc.app import Picker
from ext_proc.settings import PickerSettings
from support.fleets import fleet
from support.identities import Machines
from support.traffic import eventually
from tidegate.stack.processes.ports import HeldPorts
from xds_server.app import _running
from xds_server.settings import ControlSettings


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Machines:
    """Return the authority of the picker."""
    return Machines(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def others(tmp_path_factory) -> Machines:
    """Return another authority."""
    return Machines(tmp_path_factory.mktemp("others"), "other")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("its own", "localhost"),
        ("of another authority", "localhost"),
        ("of another name", "control.tidegate"),
        ("plain", "localhost"),
    ],
)
async def test_pools_are_taken_of_a_verified_server_only(
    ours: Machines, others: Machines, tmp_path, kind: str, name: str
) -> None:
    """The certificate must be of the picker's authority and have the server's name."""
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet().model_dump_json())
    options = {"of another authority": others.options, "plain": {}}.get(kind, ours.options)
    with HeldPorts() as ports:
        ads, admin, metrics, listen, page = (ports.address() for _ in range(5))
        control = ControlSettings(fleet=file, ads=ads, admin=admin, metrics=metrics, **options)
        settings = PickerSettings(
            id="p1", listen=listen, metrics=page, xds=ads, tls_server_name=name, **ours.options
        )

        async with _running(control), Picker(settings) as picker:
            client = picker._fleet
            assert client is not None
            following = asyncio.create_task(client.run())

            async def tried() -> bool:
                return bool(client.state()["synced" if kind == "its own" else "last_loss"])

            try:
                assert await eventually(tried)
                assert client.state()["synced"] == (kind == "its own")
                assert bool(client.state()["pools"]) == (kind == "its own")
            finally:
                following.cancel()
