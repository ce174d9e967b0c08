"""Asks Tritons which of their models are decoupled, by the models' configurations.

A decoupled model takes each request at once, so its pending count of 0 is no queue; a page does not
say which models these are.

Rules:

1. Each model is asked for once (``/v2/models/NAME/config``), and anew after a restart of its
   replica. Without an answer, or while the model is not loaded, it is asked for every ``AGAIN_S``.
2. A replica that answers 404 is no Triton: Triton answers 400 for what it does not know.
3. A question costs at most ``TIMEOUT_S`` and ``MAX_BYTES``; at most ``MAX_MODELS`` models of a
   replica are asked for, one after the other.
4. A model of which nothing is known is taken for one that is not decoupled.
5. Where the pool speaks TLS to its replicas, so do questions (``ReplicaContexts``).

Source: Triton's model configuration extension, ``model_transaction_policy.decoupled``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp
import orjson

from tidegate_common.upstream.contexts import ReplicaContexts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tidegate_common.upstream.contexts import ReplicaTls

TIMEOUT_S: Final = 1.0
AGAIN_S: Final = 30.0
MAX_BYTES: Final = 1024 * 1024
MAX_MODELS: Final = 64
MAX_CONNECTIONS: Final = 16
"""Maximum open at one time; further questions wait within their own timeout."""
_OK: Final = 200
_NOT_FOUND: Final = 404


class AskedTriton(NamedTuple):
    """A replica to ask, and what about."""

    http: str
    """``ip:port``."""
    models: frozenset[str]
    tls: ReplicaTls | None = None


def decoupled_in(data: bytes) -> bool | None:
    """Return whether a model's configuration says decoupled; ``None`` if it is none."""
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return None
    policy = found.get("model_transaction_policy")
    return isinstance(policy, dict) and policy.get("decoupled") is True


class DecoupledModels:
    """Asks a changing set of replicas.

    Args:
        on_change: Called when a replica has told of one of its models.
        contexts: TLS contexts of the process; ``None`` = its own.
    """

    def __init__(
        self, on_change: Callable[[], None], contexts: ReplicaContexts | None = None
    ) -> None:
        self._on_change = on_change
        self._contexts = ReplicaContexts() if contexts is None else contexts
        self._wanted: dict[str, AskedTriton] = {}
        self._known: dict[str, dict[str, bool]] = {}
        """By replica: whether a model is decoupled."""
        self._no_tritons: set[str] = set()
        self._wake = asyncio.Event()

    def set_targets(self, wanted: Mapping[str, AskedTriton]) -> None:
        """Ask exactly these, by replica id."""
        for endpoint, before in self._wanted.items():
            if wanted.get(endpoint) != before:
                self._forget(endpoint)
        if wanted != self._wanted:
            self._wanted = dict(wanted)
            self._wake.set()

    def restarted(self, endpoint: str) -> None:
        """Ask a replica anew."""
        if endpoint in self._wanted:
            self._forget(endpoint)
            self._wake.set()

    def of(self, endpoint: str) -> frozenset[str]:
        """Return the models of a replica that are known to be decoupled."""
        known = self._known.get(endpoint, {})
        return frozenset(model for model, decoupled in known.items() if decoupled)

    async def run(self) -> None:
        """Ask until cancelled."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            while True:
                self._wake.clear()
                pending = {each: self._pending(each) for each in self._wanted}
                asked = [self._ask(session, each, models) for each, models in pending.items()]
                await asyncio.gather(*asked)
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S if any(pending.values()) else None):
                        await self._wake.wait()

    def _forget(self, endpoint: str) -> None:
        self._known.pop(endpoint, None)
        self._no_tritons.discard(endpoint)

    def _pending(self, endpoint: str) -> list[str]:
        if endpoint in self._no_tritons:
            return []
        known = self._known.get(endpoint, {})
        models = sorted(self._wanted[endpoint].models)[:MAX_MODELS]
        return [model for model in models if model not in known]

    async def _ask(self, session: aiohttp.ClientSession, endpoint: str, models: list[str]) -> None:
        target = self._wanted[endpoint]
        for model in models:
            try:
                options = await self._contexts.options(target.tls)
            except ValueError:  # files that cannot be used
                return
            scheme = "https" if options else "http"
            url = f"{scheme}://{target.http}/v2/models/{quote(model, safe='')}/config"
            status, decoupled = await _config(session, url, options)
            if self._wanted.get(endpoint) != target:
                return
            if status == _NOT_FOUND:
                self._no_tritons.add(endpoint)
                return
            if decoupled is not None:
                self._known.setdefault(endpoint, {})[model] = decoupled
                self._on_change()


async def _config(
    session: aiohttp.ClientSession, url: str, options: dict[str, Any]
) -> tuple[int | None, bool | None]:
    """Return the status of an answer, and what it says."""
    try:
        async with session.get(url, allow_redirects=False, **options) as answer:
            if answer.status != _OK:
                return answer.status, None
            body = await answer.content.read(MAX_BYTES + 1)
            while not answer.content.at_eof() and len(body) <= MAX_BYTES:
                body += await answer.content.read(MAX_BYTES + 1 - len(body))
    except (aiohttp.ClientError, OSError, ValueError):  # a timeout is an OSError
        return None, None
    return _OK, decoupled_in(body) if len(body) <= MAX_BYTES else None
