"""Who may call what of the admin API: every call in one table. Pure."""

from __future__ import annotations

from typing import Final

from tidegate_common.tls.roles import ADMINS, OPERATORS, READERS, MethodRoles

ADMIN_SERVICE: Final = "tidegate.admin.v1.Admin"
_ADMIN: Final = f"/{ADMIN_SERVICE}"
_CSDS: Final = "/envoy.service.status.v3.ClientStatusDiscoveryService"
ACCESS: Final = MethodRoles(
    {
        f"{_ADMIN}/GetFleet": READERS,
        f"{_ADMIN}/GetStatus": READERS,
        f"{_ADMIN}/GetReplicas": READERS,
        f"{_ADMIN}/GetModels": READERS,
        f"{_ADMIN}/GetTraffic": READERS,
        f"{_ADMIN}/GetConfig": READERS,
        f"{_ADMIN}/GetRequest": READERS,
        f"{_ADMIN}/GetDrain": READERS,
        f"{_ADMIN}/GetOperations": READERS,
        f"{_ADMIN}/GetModelParity": READERS,
        f"{_ADMIN}/GetCanaries": READERS,
        f"{_ADMIN}/ListRevisions": READERS,
        f"{_ADMIN}/Diff": READERS,
        f"{_CSDS}/FetchClientStatus": READERS,
        f"{_CSDS}/StreamClientStatus": READERS,
        f"{_ADMIN}/SetWeights": OPERATORS,
        f"{_ADMIN}/SetDraining": OPERATORS,
        f"{_ADMIN}/SetStandby": OPERATORS,
        f"{_ADMIN}/SetBreaker": OPERATORS,
        f"{_ADMIN}/SetSlowStart": OPERATORS,
        f"{_ADMIN}/SetDropOverload": OPERATORS,
        f"{_ADMIN}/StartCanary": OPERATORS,
        f"{_ADMIN}/ActOnCanary": OPERATORS,
        f"{_ADMIN}/Confirm": OPERATORS,
        f"{_ADMIN}/Rollback": OPERATORS,
        f"{_ADMIN}/Apply": ADMINS,
        f"{_ADMIN}/LoadModel": ADMINS,
        f"{_ADMIN}/UnloadModel": ADMINS,
        f"{_ADMIN}/AbortModel": ADMINS,
    }
)
"""Roles by method."""

CHANGES: Final = frozenset(path for path, roles in ACCESS.methods.items() if roles != READERS)
"""The methods that change something."""
