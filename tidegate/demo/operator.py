"""Operator of the demo: reads and changes the fleet through the admin API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Self

import grpc

from tidegate_api.admin.v1 import admin_pb2 as api
from tidegate_api.admin.v1.admin_pb2_grpc import AdminStub

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidegate_api.admin.v1.admin_pb2_grpc import AdminAsyncStub

AUTHOR: Final = "demo"
WAIT_S: Final = 15.0
"""Time limit for the acknowledgements of a change, seconds."""
MARGIN_S: Final = 5.0


class ChangeError(Exception):
    """A change that was rejected or not acknowledged by every client."""


class Operator:
    """A connection to the control server; an async context manager."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),))
        self._stub: AdminAsyncStub = AdminStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def fleet(self) -> dict[str, Any]:
        """Return the fleet in force, in the schema of the fleet file."""
        answer = await self._stub.GetFleet(api.GetFleetRequest(), timeout=MARGIN_S)
        found: dict[str, Any] = json.loads(answer.fleet_json)
        return found

    async def set_policy(self, pool: str, policy: str) -> api.ChangeResult:
        """Apply the fleet with another routing policy for one pool.

        Raises:
            ChangeError: The change was rejected or not acknowledged by every client.
        """
        fleet = with_policy(await self.fleet(), pool, policy)
        request = api.ApplyRequest(
            fleet=json.dumps(fleet), source="demo", options=_options(f"compare {policy}")
        )
        return _everywhere(await self._call(self._stub.Apply(request, timeout=WAIT_S + MARGIN_S)))

    async def set_weights(self, pool: str, weights: Mapping[str, int]) -> api.ChangeResult:
        """Set the weights of a pool's variants.

        Raises:
            ChangeError: The change was rejected or not acknowledged by every client.
        """
        request = api.SetWeightsRequest(pool=pool, weights=weights, options=_options("canary"))
        return _everywhere(
            await self._call(self._stub.SetWeights(request, timeout=WAIT_S + MARGIN_S))
        )

    async def _call(self, call: Any) -> api.ChangeResult:
        try:
            result: api.ChangeResult = await call
        except grpc.aio.AioRpcError as error:
            raise ChangeError(error.details() or error.code().name) from error
        return result


def with_policy(fleet: dict[str, Any], pool: str, policy: str) -> dict[str, Any]:
    """Return a copy of the fleet with another routing policy for one pool.

    Raises:
        ChangeError: The fleet has no such pool.
    """
    if all(one["name"] != pool for one in fleet["pools"]):
        raise ChangeError(f"the fleet has no pool {pool!r}")
    return {
        **fleet,
        "pools": [
            {**one, "routing": {**one.get("routing", {}), "policy": policy}}
            if one["name"] == pool
            else one
            for one in fleet["pools"]
        ],
    }


def _options(reason: str) -> api.ChangeOptions:
    return api.ChangeOptions(author=AUTHOR, reason=reason, wait=True, timeout_seconds=WAIT_S)


def _everywhere(result: api.ChangeResult) -> api.ChangeResult:
    if result.problems:
        first = result.problems[0]
        raise ChangeError(f"{first.client} {first.state} {first.type}: {first.message}")
    if result.acked < result.clients:
        raise ChangeError(
            f"{result.acked} of {result.clients} clients acknowledged within {WAIT_S:g} s"
        )
    return result
