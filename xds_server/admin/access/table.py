"""Who may call what of the admin API: every call in one table, of the roles in its schema. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate_api.admin.v1 import admin_pb2
from tidegate_common.tls.roles import ADMINS, NONE, OPERATORS, READERS, MethodRoles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate_common.tls.roles import Roles

ADMIN_SERVICE: Final = "tidegate.admin.v1.Admin"
_CSDS: Final = "/envoy.service.status.v3.ClientStatusDiscoveryService"
_ROLES: Final[Mapping[admin_pb2.Access.ValueType, Roles]] = {
    admin_pb2.ACCESS_UNSPECIFIED: NONE,
    admin_pb2.ACCESS_READERS: READERS,
    admin_pb2.ACCESS_OPERATORS: OPERATORS,
    admin_pb2.ACCESS_ADMINS: ADMINS,
}
_METHODS: Final = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods
ACCESS: Final = MethodRoles(
    {
        **{
            f"/{ADMIN_SERVICE}/{each.name}": _ROLES[each.GetOptions().Extensions[admin_pb2.access]]
            for each in _METHODS
        },
        f"{_CSDS}/FetchClientStatus": READERS,
        f"{_CSDS}/StreamClientStatus": READERS,
    }
)
"""Roles by method."""

CHANGES: Final = frozenset(path for path, roles in ACCESS.methods.items() if roles != READERS)
"""The methods that change something."""
