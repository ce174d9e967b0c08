"""Readiness probes of the stack; each returns what is still missing, or ``None`` if ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import aiohttp
import grpc

from tidegate.stack.processes.waiting import LOOK_TIMEOUT_S, StackError
from tidegate_api.admin.v1 import admin_pb2, admin_pb2_grpc
from tidegate_api.names import PICKER_CLUSTER

if TYPE_CHECKING:
    from collections.abc import Collection

REQUIRED_TYPES: Final = {"envoy": ("CDS", "EDS", "LDS", "RDS"), "picker": ("POOL",)}
"""Resource types that each kind of client must have acknowledged."""

_SETTLED_STATES: Final = ("SYNCED", "NOT_SENT")
_PROBES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "toy-llm": ("generate", {"text_input": "ready?", "max_tokens": 1}),
    "vision": (
        "infer",
        {
            "inputs": [
                {
                    "name": "image",
                    "datatype": "FP32",
                    "shape": [1, 3, 32, 32],
                    "data": [0.0] * 3072,
                }
            ]
        },
    ),
    "counter": (
        "infer",
        {
            "parameters": {
                "sequence_id": "ready?",
                "sequence_start": True,
                "sequence_end": True,
            },
            "inputs": [{"name": "value", "datatype": "INT32", "shape": [1], "data": [0]}],
        },
    ),
}


async def server_answers(admin: str) -> bool:
    """Return whether a control server listens here, in whatever state it is."""
    async with grpc.aio.insecure_channel(admin) as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)
        try:
            await stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=LOOK_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
    return True


async def status_synced(admin: str, kinds: Collection[str]) -> str | None:
    """Probe whether a client of each kind is connected and has acknowledged all resources.

    Args:
        admin: ``ip:port`` of the control server's admin gRPC.
        kinds: Subset of ``envoy`` and ``picker``; if empty, the control server only has to
            answer and be settled.

    Raises:
        StackError: A client rejected a resource, so that waiting cannot succeed.
    """
    async with grpc.aio.insecure_channel(admin) as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)
        try:
            status = await stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=LOOK_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return f"admin at {admin}: {error.code().name}"
    return missing_of(status, kinds)


def missing_of(status: admin_pb2.GetStatusResponse, kinds: Collection[str]) -> str | None:
    """Return what a status still lacks, or ``None`` if all clients are in sync.

    Raises:
        StackError: A client rejected a resource, or the fleet file is invalid.
    """
    if status.file_error:
        raise StackError(f"the fleet file is not in force: {status.file_error}")
    for client in status.clients:
        for held in client.types:
            if held.state == "NACKED":
                raise StackError(f"{client.node} rejected {held.type}: {held.message}")
    if not status.settled:
        return "a change is under way"
    for kind in sorted(kinds):
        clients = [client for client in status.clients if client.kind == kind]
        if not clients:
            return f"no {kind} is connected"
        for client in clients:
            missing = _missing_at(client)
            if missing is not None:
                return missing
    return None


def _missing_at(client: admin_pb2.ClientStatus) -> str | None:
    states = {held.type: held.state for held in client.types}
    for name in REQUIRED_TYPES[client.kind]:
        if states.get(name) != "SYNCED":
            return f"{client.node}: {name} is {states.get(name, 'not subscribed')}"
    for name, state in states.items():
        if state not in _SETTLED_STATES:
            return f"{client.node}: {name} is {state}"
    return None


async def picker_healthy(
    session: aiohttp.ClientSession, envoy_admin: str, least: int = 1
) -> str | None:
    """Probe whether Envoy's health check finds the picker healthy; before, Envoy does not call it.

    Args:
        session: HTTP session of the probe.
        envoy_admin: ``ip:port`` of Envoy's admin page.
        least: Minimum number of healthy workers.
    """
    url = f"http://{envoy_admin}/clusters?format=json"
    try:
        timeout = aiohttp.ClientTimeout(total=LOOK_TIMEOUT_S)
        async with session.get(url, timeout=timeout) as answer:
            page = await answer.json(content_type=None)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return f"{url}: {error or type(error).__name__}"
    healthy = sum(
        not host.get("health_status", {}).get("failed_active_health_check")
        for cluster in page.get("cluster_statuses", ())
        if cluster.get("name") == PICKER_CLUSTER
        for host in cluster.get("host_statuses", ())
    )
    return None if healthy >= least else "Envoy has not yet found the picker healthy"


async def inference_through(session: aiohttp.ClientSession, url: str, model: str) -> str | None:
    """Probe whether ``model`` answers an inference request at ``url``."""
    verb, body = _PROBES[model]
    target = f"{url}/v2/models/{model}/{verb}"
    try:
        timeout = aiohttp.ClientTimeout(total=LOOK_TIMEOUT_S)
        async with session.post(target, json=body, timeout=timeout) as answer:
            if answer.status == 200:  # noqa: PLR2004 - HTTP OK
                return None
            return f"{target} answers {answer.status}: {(await answer.text())[:200]}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return f"{target}: {error or type(error).__name__}"
