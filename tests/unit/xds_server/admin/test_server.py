"""Which roles may call what on the admin port."""

from __future__ import annotations

from envoy.service.status.v3 import csds_pb2

from tidegate_api.admin.v1 import admin_pb2
from tidegate_common.tls.roles import ADMINS, OPERATORS, READERS
from xds_server.admin.server import ACCESS


def test_each_method_names_its_roles() -> None:
    """One that names none would be closed to all."""
    services = (
        admin_pb2.DESCRIPTOR.services_by_name["Admin"],
        csds_pb2.DESCRIPTOR.services_by_name["ClientStatusDiscoveryService"],
    )
    served = {f"/{each.full_name}/{method.name}" for each in services for method in each.methods}
    assert ACCESS.methods.keys() == served


def test_what_changes_the_fleet_is_not_for_viewers() -> None:
    """Reading methods begin with Get, List, Fetch, Stream or are Diff."""
    for path, roles in ACCESS.methods.items():
        name = path.rpartition("/")[2]
        reads = name.startswith(("Get", "List", "Fetch", "Stream")) or name == "Diff"
        assert (roles == READERS) is reads
        assert roles in (READERS, OPERATORS, ADMINS)
