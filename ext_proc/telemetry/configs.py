"""Asks Tritons how their models run requests, by the models' configurations.

A page does not say which models are decoupled, so that a pending count of 0 is no queue, nor how
many requests a model runs at once (``read_config``).

Rules:

1. Each model is asked for once (``/v2/models/NAME/config``), and anew after a restart of its
   replica; so are the steps of an ensemble. Without an answer, or while the model is not loaded, it
   is asked for every ``AGAIN_S``.
2. A replica that answers 404 is no Triton: Triton answers 400 for what it does not know.
3. A question costs at most ``TIMEOUT_S`` and ``MAX_BYTES``; at most ``MAX_MODELS`` models of a
   replica are asked for, one after the other.
4. A model of which nothing is known is taken for one that is not decoupled.
5. Where the pool speaks TLS to its replicas, so do questions (``ReplicaContexts``).

Source: Triton's model configuration extension (``model_config.proto``).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import orjson

from tidegate_common.upstream.client import NOT_FOUND, OK, AskError, AskFault, ReplicaClient, url_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tidegate_common.upstream.contexts import ReplicaContexts, ReplicaTls

TIMEOUT_S: Final = 1.0
AGAIN_S: Final = 30.0
MAX_BYTES: Final = 1024 * 1024
MAX_MODELS: Final = 64
MAX_DEPTH: Final = 4
"""Most ensembles within each other whose slots are added."""
AT_ONCE: Final = 16
"""Most questions at one time; further ones wait."""
_BATCHERS: Final = ("dynamic_batching", "sequence_batching")


class AskedTriton(NamedTuple):
    """A replica to ask, and what about."""

    http: str
    """``ip:port``."""
    models: frozenset[str]
    tls: ReplicaTls | None = None


class ModelConfig(NamedTuple):
    """What a model's configuration says of how it runs requests."""

    decoupled: bool
    slots: int | None = None
    """Requests that it runs at once; ``None`` = not known, or by its steps."""
    batch: int = 1
    """Requests that an instance takes at once when it gets free."""
    steps: tuple[str, ...] = ()
    """Models of an ensemble."""


def read_config(data: bytes) -> ModelConfig | None:
    """Read a model's configuration; ``None`` if it is none.

    A model has a slot for each request of a batch of each instance. Without a batcher (dynamic or
    of sequences) an instance runs one request at a time, whatever its ``max_batch_size``. Passive
    instances run none. A decoupled model may hand its requests on, so its slots are not known.
    """
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return None
    policy = found.get("model_transaction_policy")
    decoupled = isinstance(policy, dict) and policy.get("decoupled") is True
    if isinstance(found.get("ensemble_scheduling"), dict):
        steps = found["ensemble_scheduling"].get("step")
        named = [
            each["model_name"]
            for each in (steps if isinstance(steps, list) else ())
            if isinstance(each, dict) and isinstance(each.get("model_name"), str)
        ]
        return ModelConfig(decoupled, steps=tuple(named[:MAX_MODELS]))
    if decoupled:
        return ModelConfig(decoupled=True)
    batchers = [each for each in _BATCHERS if isinstance(found.get(each), dict)]
    batch = found.get("max_batch_size") if batchers else 1
    groups = found.get("instance_group")
    instances = sum(_instances(each) for each in (groups if isinstance(groups, list) else ()))
    if not instances or not isinstance(batch, int):
        return ModelConfig(decoupled=False)
    batch = max(1, batch)
    return ModelConfig(False, instances * batch, batch if _BATCHERS[0] in batchers else 1)


def _instances(group: Any) -> int:
    if not isinstance(group, dict) or group.get("passive") is True:
        return 0
    count, gpus = group.get("count"), group.get("gpus")
    each = len(gpus) if isinstance(gpus, list) and group.get("kind") == "KIND_GPU" else 1
    return count * max(1, each) if isinstance(count, int) and count > 0 else 0


class ModelConfigs:
    """Asks a changing set of replicas.

    Args:
        on_change: Called when a replica has told of one of its models.
        contexts: TLS contexts of the process; ``None`` = its own.
    """

    def __init__(
        self, on_change: Callable[[], None], contexts: ReplicaContexts | None = None
    ) -> None:
        self._on_change = on_change
        self._client = ReplicaClient(AT_ONCE, contexts)
        self._wanted: dict[str, AskedTriton] = {}
        self._known: dict[str, dict[str, ModelConfig]] = {}
        """By replica and model."""
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

    def decoupled(self, endpoint: str) -> frozenset[str]:
        """Return the models of a replica that are known to be decoupled."""
        known = self._known.get(endpoint, {})
        return frozenset(model for model, config in known.items() if config.decoupled)

    def slots(self, endpoint: str) -> dict[str, int]:
        """Return how many requests the models of a replica run at once, as far as it is known.

        The steps of an ensemble run one after the other for each request, and all at once for
        different ones, so it has the slots of all.
        """
        return {model: slots for model, (slots, _) in self._all_slots(endpoint).items()}

    def batches(self, endpoint: str) -> dict[str, int]:
        """Return how many requests the same models take at once where an instance gets free.

        For an ensemble they are those of all steps.
        """
        return {model: batch for model, (_, batch) in self._all_slots(endpoint).items()}

    def _all_slots(self, endpoint: str) -> dict[str, tuple[int, int]]:
        known = self._known.get(endpoint, {})
        found = {model: self._of(known, model, MAX_DEPTH) for model in known}
        return {model: each for model, each in found.items() if each is not None}

    def _of(
        self, known: Mapping[str, ModelConfig], model: str, depth: int
    ) -> tuple[int, int] | None:
        """Return slots and batch of a model; ``None`` = not known."""
        config = known.get(model)
        if config is None or not config.steps or not depth:
            return None if config is None or config.slots is None else (config.slots, config.batch)
        slots = batch = 0
        for step in set(config.steps):
            found = self._of(known, step, depth - 1)
            if found is None:
                return None
            slots, batch = slots + found[0], batch + found[1]
        return slots, batch

    async def run(self) -> None:
        """Ask until cancelled."""
        async with self._client:
            while True:
                self._wake.clear()
                pending = {each: self._pending(each) for each in self._wanted}
                asked = [self._ask(each, models) for each, models in pending.items()]
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
        steps = {step for config in known.values() for step in config.steps}
        models = sorted(self._wanted[endpoint].models | steps)[:MAX_MODELS]
        return [model for model in models if model not in known]

    async def _ask(self, endpoint: str, models: list[str]) -> None:
        target = self._wanted[endpoint]
        for model in models:
            url = url_at(target.http, f"/v2/models/{quote(model, safe='')}/config", target.tls)
            status, body = 0, b""
            try:
                async with self._client.turn(TIMEOUT_S) as turn:
                    status, body, _ = await turn.http(
                        "GET", url, tls=target.tls, max_bytes=MAX_BYTES
                    )
            except AskError as error:
                if error.fault is AskFault.NO_FILES:
                    return
            if self._wanted.get(endpoint) != target:
                return
            if status == NOT_FOUND:
                self._no_tritons.add(endpoint)
                return
            config = read_config(body) if status == OK else None
            if config is not None:
                self._known.setdefault(endpoint, {})[model] = config
                self._on_change()
                if config.steps:
                    self._wake.set()
