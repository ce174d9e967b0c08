"""Asks Tritons for their models and has them load and unload, over HTTP.

Rules:

1. Each question has ``READ_S`` seconds, each change ``CHANGE_S``, and warm-up requests ``WARM_S``.
   An answer has at most ``MAX_ANSWER`` bytes. What is beyond is a fault of that replica.
2. At most ``AT_ONCE`` requests are open. Waiting for a turn does not count into the time.
3. No redirect is followed. TLS is that of the pool (``ReplicaClient``).
4. An unload has ended when the index shows no version of the model in use any more: Triton answers
   at once, and lets running requests end.

Source: Triton's model repository extension.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import yarl

from tidegate_common.parity import ParityError
from tidegate_common.upstream.client import (
    NOT_FOUND,
    OK,
    AskError,
    AskFault,
    ReplicaClient,
    url_at,
)
from tidegate_common.upstream.contexts import ReplicaTls
from xds_server.applications.loading import parity, plan

if TYPE_CHECKING:
    from xds_server.applications.loading.operation import Kind
    from xds_server.fleet.model.fields import UpstreamTls

READ_S: Final = 5.0
CHANGE_S: Final = 900.0
WARM_S: Final = 120.0
AT_ONCE: Final = 32
MAX_ANSWER: Final = 4 * 2**20
POLL_S: Final = 0.1
NO_MODEL: Final = "tidegate-asks-whether-unloads-are-allowed"
"""A model that no repository has: unloading it changes nothing, and is refused where no unload is
allowed."""

_MAX_TEXT: Final = 300


class ReplicaFault(RuntimeError):  # noqa: N818 - reads as the sentence it is
    """A replica did not do or answer what it was asked; the message says why."""


class TritonAddress(NamedTuple):
    """Where a replica is asked."""

    id: str
    http: str | None
    """``ip:port``; ``None`` = it has no HTTP port."""
    metrics: str | None
    """URL of its metrics page."""
    tls: UpstreamTls | None


class TritonCalls(ReplicaClient):
    """Calls to replicas; an asynchronous context manager. See the module's rules."""

    def __init__(self) -> None:
        super().__init__(AT_ONCE)

    async def entry(self, replica: TritonAddress, model: str) -> plan.RepositoryEntry:
        """Return what the replica's repository index says of a model.

        Raises:
            ReplicaFault: It does not say.
        """
        body = await self._good(replica, "POST", "/v2/repository/index", READ_S)
        try:
            return plan.model_in(body, model)
        except plan.RepositoryIndexError as error:
            raise ReplicaFault(str(error)) from error

    async def check_explicit(self, replica: TritonAddress) -> None:
        """Make sure that the replica takes loads and unloads.

        Raises:
            ReplicaFault: It does not, or does not answer.
        """
        path = f"/v2/repository/models/{NO_MODEL}/unload"
        _, body = await self._ask(replica, "POST", path, READ_S)
        if plan.NOT_EXPLICIT in _text(body):
            raise ReplicaFault(plan.NEEDS_EXPLICIT)

    async def free_memory(self, replica: TritonAddress) -> plan.FreeMemory | None:
        """Return the free memory; ``None`` = unknown, also where no page can be read."""
        if replica.metrics is None:
            return None
        try:
            status, body = await self._open("GET", replica.metrics, None, READ_S)
        except ReplicaFault:
            return None
        return plan.free_memory(body.decode(errors="replace")) if status == OK else None

    async def change(self, replica: TritonAddress, kind: Kind, model: str) -> None:
        """Load or unload a model.

        Raises:
            ReplicaFault: It failed, or it is not known whether it succeeded.
        """
        path = f"/v2/repository/models/{quote(model, safe='')}/{kind}"
        loop = asyncio.get_running_loop()
        until = loop.time() + CHANGE_S
        await self._good(replica, "POST", path, CHANGE_S, b"{}")
        if kind == "unload":
            while (await self.entry(replica, model)).in_use:
                if loop.time() > until:
                    raise ReplicaFault(f"the model is still in use after {CHANGE_S:.0f} s")
                await asyncio.sleep(POLL_S)
        elif not (await self.entry(replica, model)).ready:
            raise ReplicaFault("the load succeeded, but no version is READY")

    async def describe(self, replica: TritonAddress, model: str) -> parity.ModelDescription:
        """Return what a replica says of a model.

        Raises:
            ReplicaFault: It says nothing that can be read.
        """
        path = f"/v2/models/{quote(model, safe='')}"
        config = await self._good(replica, "GET", f"{path}/config", READ_S)
        metadata = await self._good(replica, "GET", path, READ_S)
        try:
            return parity.described(config, metadata)
        except ParityError as error:
            raise ReplicaFault(str(error)) from error

    async def answered(self, replica: TritonAddress, model: str) -> plan.Answered:
        """Return what a replica has counted of a model's requests.

        Raises:
            ReplicaFault: It does not say.
        """
        body = await self._good(replica, "GET", f"/v2/models/{quote(model, safe='')}/stats", READ_S)
        try:
            return plan.answered(body)
        except ValueError as error:
            raise ReplicaFault(str(error)) from error

    async def infer(self, replica: TritonAddress, model: str, version: str, body: bytes) -> None:
        """Send a request to a model; its answer is not read beyond the bound.

        Raises:
            ReplicaFault: The answer is not good.
        """
        of = f"/versions/{quote(version, safe='')}" if version else ""
        path = f"/v2/models/{quote(model, safe='')}{of}/infer"
        await self._good(replica, "POST", path, WARM_S, body)

    async def _good(
        self, replica: TritonAddress, method: str, path: str, timeout_s: float, body: bytes = b""
    ) -> bytes:
        status, answer = await self._ask(replica, method, path, timeout_s, body)
        if status == OK:
            return answer
        text = _text(answer)
        if plan.NOT_EXPLICIT in text:
            raise ReplicaFault(plan.NEEDS_EXPLICIT)
        if status == NOT_FOUND and path == "/v2/repository/index":
            raise ReplicaFault("it has no model repository: it is no Triton")
        raise ReplicaFault(f"{status}: {text}" if text else f"it answered {status}")

    async def _ask(
        self, replica: TritonAddress, method: str, path: str, timeout_s: float, body: bytes = b""
    ) -> tuple[int, bytes]:
        if replica.http is None:
            raise ReplicaFault("it has no HTTP address; give it `http` in the fleet file")
        tls = None if replica.tls is None else ReplicaTls.of(replica.tls)
        return await self._open(method, url_at(replica.http, path, tls), tls, timeout_s, body)

    async def _open(
        self, method: str, url: str, tls: ReplicaTls | None, timeout_s: float, body: bytes = b""
    ) -> tuple[int, bytes]:
        try:
            async with self.turn(timeout_s) as turn:
                status, answer, _ = await turn.http(
                    method,
                    yarl.URL(url, encoded=True),
                    tls=tls,
                    body=body,
                    headers={"content-type": "application/json"} if body else None,
                    max_bytes=MAX_ANSWER,
                )
        except AskError as error:
            if error.fault is AskFault.LATE:
                raise ReplicaFault(f"no answer in {timeout_s:.0f} s") from None
            if error.fault is AskFault.TOO_LARGE:
                raise ReplicaFault(f"its answer is larger than {MAX_ANSWER >> 20} MiB") from None
            raise ReplicaFault(f"it cannot be asked: {str(error)[:_MAX_TEXT]}") from error
        return status, answer


def _text(body: bytes) -> str:
    """Return the error of an answer in words."""
    try:
        found = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = body.decode(errors="replace")
    return " ".join(str(found).split())[:_MAX_TEXT]
