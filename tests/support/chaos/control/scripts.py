"""What operators do: each script ends when it has been made, or raises ``BrokenError``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final

from support.chaos.control.values import AGAIN_S, LONG_S, MODEL, BrokenError
from support.fleets import endpoint, fleet, pool
from xds_server.applications.canary.rollout import RolloutPhase
from xds_server.applications.loading.keeper import WantedOperation
from xds_server.control.operation import ChangeOptions
from xds_server.fleet.change import set_draining

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from support.chaos.control.world import World


async def _changed(
    world: World, ask: Callable[[Any], Awaitable[Any]], made: Callable[[Any], bool]
) -> None:
    """Make a change until it is made."""
    while True:
        try:
            change = await world.asked(ask)
        except Exception:  # noqa: BLE001 - an operator tries again
            change = None
        if change is not None and change.changes:
            world.told[change.revision] = change.changes
        leader = world.leader
        if change is not None and leader is not None and made(leader.parts._control.written):
            return
        await asyncio.sleep(AGAIN_S)
        leader = world.leader
        answers = leader is not None and leader.stopped_until < world.network.now
        if answers and made(leader.parts._control.written):
            return


async def change(world: World) -> None:
    """Replace a replica by another one, in all stages."""
    text = _fleet(endpoint(1), endpoint(3, variant="canary"), endpoint(4)).model_dump_json()
    options = ChangeOptions("operator", force=True, wait=True)
    await _changed(
        world,
        lambda parts: parts._control.apply_text(text, "operator", options),
        lambda found: [each.id for each in found.pools[0].endpoints] == ["r1", "r3", "r4"],
    )


async def drain(world: World) -> None:
    """Drain a replica; then change something else."""
    options = ChangeOptions("operator", relief=True)
    await _changed(
        world,
        lambda parts: parts._control.change(lambda live: set_draining(live, "r1", True), options),
        lambda found: found.pools[0].endpoints[0].draining,
    )
    world.promised = True
    await asyncio.sleep(3.0)
    leader = world.leader
    while leader is None or leader.stopped_until > world.network.now:
        await asyncio.sleep(0.2)
        leader = world.leader
    if not leader.parts._control.written.pools[0].endpoints[0].draining:
        raise BrokenError("r1 no longer drains")


async def restore(world: World) -> None:
    """Drain a replica; lose the power, and the drain, as etcd's backup is older; accept that."""
    backup = world.store.backup()
    await drain(world)
    pickers = [each for each in world.clients if each.kind == "picker"]
    while world.store.backup() == backup or not all(each.draining("r1") for each in pickers):  # noqa: ASYNC110 - as operators do
        await asyncio.sleep(0.2)
    await asyncio.sleep(LONG_S + 4.0)  # all servers run, and have read it
    before = world.epoch
    world.power_lost(backup)
    await asyncio.sleep(LONG_S)
    if world.leader is not None:
        raise BrokenError("a server leads an older history")
    world.promised = world.drained = False
    world.told.clear()
    world.accepts_loss = True
    for each in tuple(world.hosts.values()):
        each.end()
    while world.leader is None:  # noqa: ASYNC110 - as operators do
        await asyncio.sleep(0.2)
    if world.epoch <= before:
        raise BrokenError(f"epoch {world.epoch} comes after {before}")


async def canary(world: World) -> None:
    """Begin a rollout, and promote it."""
    while True:
        leader = world.leader
        found = None
        if leader is not None:
            found = leader.parts._canaries.rollouts("llm").get("llm")
        try:
            if found is None or (found.state.phase.ended and found.state.step < 0):
                await world.asked(
                    lambda parts: parts._canaries.begin("llm", "canary", "operator", {})
                )
            elif found.state.phase is RolloutPhase.PROMOTED:
                break
            else:
                await world.asked(lambda parts: parts._canaries.ask("llm", "promote", "operator"))
        except Exception:  # noqa: BLE001 - an operator tries again
            await asyncio.sleep(AGAIN_S)
        await asyncio.sleep(AGAIN_S)
    weights = {}
    if leader is not None:
        (llm,) = leader.parts._control.written.pools
        weights = {each.name: each.weight for each in llm.variants}
    if weights.get("stable") or not weights.get("canary"):
        raise BrokenError(f"a promoted canary has the weights {weights}")


async def load(world: World) -> None:
    """Load a model onto all replicas of a pool."""
    wanted = WantedOperation("load", "llm", MODEL, parallel=1, author="operator")
    number = 0
    while True:
        leader = world.leader
        known = () if leader is None else leader.parts._models._loads.operations("", 0, 9)
        if number and leader is not None and number not in {each.number for each in known}:
            raise BrokenError(f"operation {number} is forgotten")
        if known and all(each.ended for each in known):
            break
        if not known and leader is not None:
            with contextlib.suppress(Exception):
                made = await world.asked(lambda parts: parts._models._loads.begin(wanted))
                number = 0 if made is None else made.number
        await asyncio.sleep(AGAIN_S)
    done = known[0].phase == "done"
    if len(known) != 1 or known[0].phase not in {"done", "undone"}:
        raise BrokenError(f"operations: {[(each.number, each.phase) for each in known]}")
    if world.loaded != ({"r1", "r2", "r3"} if done else set()):
        raise BrokenError(f"{known[0].phase}, but {sorted(world.loaded)} have the model")


SCRIPTS: Final = {
    "change": change,
    "drain": drain,
    "restore": restore,
    "canary": canary,
    "load": load,
}


def _fleet(*endpoints: Any) -> Any:
    return fleet(
        pool(
            variants=[
                {"name": "stable", "weight": 100, "model_version": "1"},
                {"name": "canary", "weight": 0, "model_version": "2"},
            ],
            endpoints=list(endpoints) or [endpoint(1), endpoint(2), endpoint(3, variant="canary")],
            canary={"steps": [10, 100], "least_time": 3600},
            default=True,
        )
    )


@functools.cache
def _text() -> str:
    return str(_fleet().model_dump_json())
