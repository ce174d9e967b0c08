"""What the actions of an operation do at replicas of the fleet in force.

Rules:

1. A replica is looked up at each action, so that one whose address has changed is found. One that
   has left its pool is a fault.
2. An action that fails in any way has an outcome that undoes the operation.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from xds_server.applications.loading import pins, plan
from xds_server.applications.loading.leaving import LeavingModels, ModelDrained, TooManyHeld
from xds_server.applications.loading.machine import (
    Action,
    Check,
    Compare,
    LoadMachine,
    Look,
    ModelCall,
    ReplicaFinding,
)
from xds_server.applications.loading.operation import MAX_REPLICAS
from xds_server.applications.loading.parity import ModelDescription, differences
from xds_server.applications.loading.replicas import ReplicaFault, TritonAddress, TritonCalls
from xds_server.fleet.change import BadChange, UnknownName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from xds_server.applications.loading.machine import Warm
    from xds_server.applications.loading.operation import Operation
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.model.fleet import EndpointSpec, PoolSpec

    Event = Callable[[LoadMachine], list[Action]]
    """Tells a machine an outcome, and returns what it wants next."""

MAX_MODEL_NAME: Final = 256
_MAY_LOSE: Final = "it may still be sent requests; try again, or use --force to unload all the same"
FIRST_PAUSE_S: Final = 1.0
"""Pause before the second try of a call; it doubles with each further one."""

_log = structlog.get_logger(__name__)


class ReplicaParity(NamedTuple):
    """What one replica has of a model."""

    endpoint: str
    description: ModelDescription | None
    fault: str
    """Why there is no description; empty = there is one."""


class ModelActions:
    """Carries out actions; see the module's rules.

    Args:
        control: The fleet in force.
        calls: Calls to replicas.
        pause: Waits for some seconds.
        leaving: Takes models out of use before they are unloaded; ``None`` = nothing does.
    """

    def __init__(
        self,
        control: Control,
        calls: TritonCalls,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        leaving: LeavingModels | None = None,
    ) -> None:
        self._leaving = leaving
        self._control = control
        self._calls = calls
        self._pause = pause

    async def act(self, action: Action, operation: Operation, warmup: tuple[bytes, ...]) -> Event:
        """Carry an action out and return its outcome."""
        try:
            if isinstance(action, Check):
                findings, refusal = await self._checked(operation)
                return lambda machine: machine.checked(findings, refusal)
            if isinstance(action, ModelCall):
                return await self._call(action, operation)
            if isinstance(action, Look):
                now = await self._looked(operation)
                return lambda machine: machine.looked(now)
            if isinstance(action, Compare):
                found = await self._compared(operation)
                return lambda machine: machine.compared(found, warm=bool(warmup))
            return _warmed(action, await self._warm(action, operation, warmup))
        except Exception as error:  # noqa: BLE001 - rule 2
            _log.exception("model_action_failed", operation=operation.number)
            return _failed(action, f"an error of the control server: {type(error).__name__}")

    async def parity(
        self, pool: str, model: str, endpoints: tuple[str, ...] = ()
    ) -> tuple[list[ReplicaParity], list[str]]:
        """Return what replicas have of a model, and the differences in words.

        Raises:
            UnknownName: There is no such pool or replica.
            BadChange: There are too many replicas, or none, or the model has no possible name.
        """
        spec = self.pool(pool)
        check_model(model)
        targets = [_address(spec, each) for each in chosen(spec, endpoints)]
        found = await asyncio.gather(*(self._described(each, model) for each in targets))
        known = {each.endpoint: each.description for each in found if each.description is not None}
        return list(found), differences(known)

    async def answered(
        self, pool: str, model: str, endpoints: Iterable[str]
    ) -> dict[str, plan.Answered]:
        """Return what replicas count of a model, without those that do not say.

        Raises:
            UnknownName: There is no such pool or replica.
            BadChange: There are too many replicas, or none, or the model has no possible name.
        """
        spec = self.pool(pool)
        check_model(model)
        found: dict[str, plan.Answered] = {}

        async def ask(replica: TritonAddress) -> None:
            with suppress(ReplicaFault):
                found[replica.id] = await self._calls.answered(replica, model)

        await asyncio.gather(*(ask(_address(spec, each)) for each in chosen(spec, endpoints)))
        return found

    def pool(self, name: str) -> PoolSpec:
        """Return a pool of the fleet in force.

        Raises:
            UnknownName: There is none of this name.
        """
        pools = self._control.fleet.pools if self._control.revision else ()
        for each in pools:
            if each.name == name:
                return each
        raise UnknownName("pool", name, [each.name for each in pools])

    def has(self, pool: str, endpoint: str) -> bool:
        """Return whether a pool of the fleet in force has a replica."""
        try:
            return any(each.id == endpoint for each in self.pool(pool).endpoints)
        except UnknownName:
            return False

    async def _checked(self, operation: Operation) -> tuple[dict[str, ReplicaFinding], str]:
        try:
            pool = self.pool(operation.pool)
        except UnknownName as error:
            return {}, str(error)
        chosen = frozenset(each.id for each in operation.targets)
        needed = next((n.memory_mib for n in pool.model_needs if n.model == operation.model), 0)
        entries: dict[str, plan.RepositoryEntry] = {}

        async def look(endpoint: EndpointSpec) -> ReplicaFinding:
            replica = _address(pool, endpoint)
            try:
                entry = entries[endpoint.id] = await self._calls.entry(replica, operation.model)
                if endpoint.id not in chosen:
                    return ReplicaFinding("keep")
                await self._calls.check_explicit(replica)
            except ReplicaFault as fault:
                return ReplicaFinding("keep", refusal=str(fault))
            memory = await self._calls.free_memory(replica) if needed else None
            return plan.plan_of(operation.kind, operation.version, entry, memory, needed)

        guarded = operation.kind == "unload" and not operation.force
        asked = [each for each in pool.endpoints if each.id in chosen or guarded]
        found = await asyncio.gather(*map(look, asked))
        findings = dict(zip((each.id for each in asked), found, strict=True))
        refusal = ""
        if guarded and (not pool.match.models or operation.model in pool.match.models):
            usable = frozenset(each.id for each in pool.endpoints if not each.draining)
            refusal = plan.takes_last(entries, usable, chosen)
        if operation.kind == "load":
            refusal = self.pinned(chosen, operation.model, operation.version)
        return findings, refusal

    def pinned(self, endpoints: Collection[str], model: str, version: str) -> str:
        """Return why a version must not be loaded onto replicas; empty = it may (``pins``)."""
        return pins.refusal(self._control.fleet, endpoints, model, version)

    async def _call(self, action: ModelCall, operation: Operation) -> Event:
        if action.delay:
            await self._pause(FIRST_PAUSE_S * 2 ** (action.delay - 1))
        notes: tuple[str, ...] = ()
        try:
            replica = self._replica(operation.pool, action.replica)
            if action.kind == "unload":
                drained = await self._drained(operation, action.replica)
                undoes = operation.kind == "load"
                if operation.phase == "undoing" and not undoes:
                    return lambda machine: machine.called(action.replica, "given up", sent=False)
                if drained.missing and not (operation.force or undoes):
                    why = f"{'; '.join(drained.missing)}: {_MAY_LOSE}"
                    return lambda machine: machine.called(action.replica, why, sent=False)
                notes = (
                    *(f"goes on although {each}" for each in drained.missing),
                    *(f"goes on although it runs: {each}" for each in drained.runs),
                )
            await self._calls.change(replica, action.kind, operation.model)
        except (ReplicaFault, UnknownName, TooManyHeld) as fault:
            return _called(action, str(fault), notes)
        return _called(action, "", notes)

    async def _drained(self, operation: Operation, replica: str) -> ModelDrained:
        if self._leaving is None:
            return ModelDrained()
        return await self._leaving.hold(holder_of(operation), (replica,), operation.model)

    async def release(self, operation: Operation) -> None:
        """Take the model into use again where the operation has taken it out of use."""
        if self._leaving is not None:
            await self._leaving.release(holder_of(operation))

    def recall(self, operation: Operation) -> None:
        """Keep the model out of use where an operation of an earlier process had begun to."""
        replicas = [each.id for each in operation.targets if each.called]
        if self._leaving is not None and operation.kind == "unload" and replicas:
            places = {(each, operation.model) for each in replicas}
            self._leaving.recall(holder_of(operation), places)

    async def _compared(self, operation: Operation) -> list[str]:
        try:
            replicas = [self._replica(operation.pool, each.id) for each in operation.targets]
        except UnknownName as error:
            return [str(error)]
        found = await asyncio.gather(*(self._described(e, operation.model) for e in replicas))
        known = {each.endpoint: each.description for each in found if each.description is not None}
        faults = [f"{each.endpoint}: {each.fault}" for each in found if each.description is None]
        unlike = pins.unlike(self._control.fleet, operation.model, known)
        return [*faults, *unlike, *differences(known, operation.version)]

    async def _looked(self, operation: Operation) -> str:
        """Return in words what the replicas serve now."""
        ids = [each.id for each in operation.targets]
        found = await asyncio.gather(*(self._serves(operation, each) for each in ids))
        by_words: dict[str, list[str]] = {}
        for name, words in zip(ids, found, strict=True):
            by_words.setdefault(words, []).append(name)
        return "; ".join(f"{', '.join(names)}: {words}" for words, names in by_words.items())

    async def _serves(self, operation: Operation, endpoint: str) -> str:
        try:
            replica = self._replica(operation.pool, endpoint)
            ready = (await self._calls.entry(replica, operation.model)).ready
        except (ReplicaFault, UnknownName, BadChange) as fault:
            return f"unknown ({fault})"
        return f"version {plan.listed(ready)}" if ready else "no version"

    async def _described(self, replica: TritonAddress, model: str) -> ReplicaParity:
        try:
            return ReplicaParity(replica.id, await self._calls.describe(replica, model), "")
        except ReplicaFault as fault:
            return ReplicaParity(replica.id, None, str(fault))

    async def _warm(self, action: Warm, operation: Operation, warmup: tuple[bytes, ...]) -> str:
        try:
            replica = self._replica(operation.pool, action.replica)
            for body in warmup:
                await self._calls.infer(replica, operation.model, operation.version, body)
        except (ReplicaFault, UnknownName) as fault:
            return str(fault)
        return ""

    def _replica(self, pool: str, endpoint: str) -> TritonAddress:
        spec = self.pool(pool)
        return _address(spec, chosen(spec, (endpoint,))[0])


def check_model(name: str) -> None:
    """Hold the bounds of a model's name.

    Raises:
        BadChange: It is empty or too long.
    """
    if not 1 <= len(name) <= MAX_MODEL_NAME:
        raise BadChange(f"model must have 1 to {MAX_MODEL_NAME} characters")


def chosen(pool: PoolSpec, wanted: Iterable[str]) -> Sequence[EndpointSpec]:
    """Return the replicas of these ids; for none, all that do not drain.

    Raises:
        UnknownName: The pool has no such replica.
        BadChange: There are too many replicas, or none.
    """
    known = {each.id: each for each in pool.endpoints}
    ids = frozenset(wanted)
    for each in sorted(ids - known.keys()):
        raise UnknownName("endpoint", each, known)
    # Standbys are published as draining; they keep their models loaded.
    every = [
        e for e in pool.endpoints if e.id in ids or (not ids and (not e.draining or e.standby))
    ]
    if not every:
        raise BadChange(f"pool {pool.name} has no replica that does not drain")
    if len(every) > MAX_REPLICAS:
        raise BadChange(f"{len(every)} replicas; at most {MAX_REPLICAS}: name some of them")
    return every


def _address(pool: PoolSpec, endpoint: EndpointSpec) -> TritonAddress:
    return TritonAddress(endpoint.id, endpoint.http, endpoint.metrics, pool.upstream_tls)


def holder_of(operation: Operation) -> tuple[str, int]:
    """Return by which name an operation holds models."""
    return "operation", operation.number


def _called(action: ModelCall, fault: str, notes: tuple[str, ...] = ()) -> Event:
    return lambda machine: machine.called(action.replica, fault, notes)


def _warmed(action: Warm, fault: str) -> Event:
    return lambda machine: machine.warmed(action.replica, fault)


def _failed(action: Action, why: str) -> Event:
    if isinstance(action, Check):
        return lambda machine: machine.checked({}, why)
    if isinstance(action, Compare):
        return lambda machine: machine.compared([why])
    if isinstance(action, Look):
        return lambda machine: machine.looked(f"unknown ({why})")
    return _called(action, why) if isinstance(action, ModelCall) else _warmed(action, why)
