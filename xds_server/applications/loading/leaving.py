"""Drains of models: a model leaves a replica, as far as requests are concerned, before its unload.

Rules:

1. Whoever unloads a model from replicas *holds* it there. A held model is marked in the pickers'
   pools (``Endpoint.leaving``), and Envoys are told as of a replica that lacks it. It is marked
   until the last holder lets go.
2. It is *told* once all pickers of the fleet are connected, hold the marks and have reported since,
   and all Envoys have acknowledged their endpoints. What is missing after ``TOLD_S`` is named; the
   holder decides whether to go on without.
3. Then what runs for the model on these replicas ends, as pickers report it; after ``RUNS_S`` what
   is left is named. That is not waited for where the model leaves all replicas of a variant: its
   requests go there to the end. Not counted are the requests of gRPC streams, whose models are not
   known; Triton lets what runs end by itself.
4. A restart forgets all holders. Those that are kept (operations) are recalled before anything is
   published, so that no picker sees a gap; others lose their stream, and with it their hold.
5. At most ``MAX_HELD`` models of replicas are held.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.traffic.stopping import RECENT_S

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Hashable,
        Iterator,
        Sequence,
    )

    from xds_server.applications.traffic.stopping import PickerUses
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.members.members import Leaving
    from xds_server.protocol.messages import ClientView


TOLD_S: Final = 10.0
RUNS_S: Final = 30.0
POLL_S: Final = 0.05
MAX_HELD: Final = 16_384
MAX_NAMED: Final = 8


class TooManyHeld(RuntimeError):  # noqa: N818 - reads as the sentence it is
    """Too many models are held on replicas."""


class ModelDrained(NamedTuple):
    """How far models have left replicas."""

    missing: tuple[str, ...] = ()
    """Clients that may still send requests there, in words; empty = all have been told."""
    runs: tuple[str, ...] = ()
    """What still runs there, in words; empty = nothing that is counted."""


class LeavingModels:
    """Takes models out of use on replicas; see the module's rules.

    Args:
        control: The fleet in force.
        clients: Returns the connected clients.
        reports: What pickers report.
        marked: Returns the models that leave a replica in the pools that pickers are to hold: those
            that leave it in each.
        tell_envoys: Control placement to Envoys, unless a publication runs.
        clock: Monotonic seconds.
        pause: Waits for some seconds.
    """

    def __init__(
        self,
        control: Control,
        clients: Callable[[], Sequence[ClientView]],
        reports: PickerUses,
        marked: Callable[[str], Collection[str]],
        tell_envoys: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._control = control
        self._clients = clients
        self._reports = reports
        self._marked = marked
        self._tell_envoys = tell_envoys
        self._clock = clock
        self._pause = pause
        self._held: dict[Hashable, set[tuple[str, str]]] = {}
        """Endpoint ids and models, by holder."""

    def places(self) -> frozenset[tuple[str, str]]:
        """Return the models that leave replicas: endpoint id and model."""
        return frozenset().union(*self._held.values())

    def recall(self, holder: Hashable, places: Collection[tuple[str, str]]) -> None:
        """Let a holder of an earlier process hold again, before anything is published."""
        self._held.setdefault(holder, set()).update(places)

    def marks(self) -> Leaving:
        """Return the models that leave replicas, by endpoint id."""
        by_endpoint: dict[str, list[str]] = {}
        for endpoint, model in sorted(self.places()):
            by_endpoint.setdefault(endpoint, []).append(model)
        return tuple((endpoint, tuple(models)) for endpoint, models in by_endpoint.items())

    async def hold(self, holder: Hashable, endpoints: Collection[str], model: str) -> ModelDrained:
        """Take a model out of use on replicas, until the holder lets go; wait until it has left.

        Raises:
            TooManyHeld: Too many are held; nothing has changed.
        """
        places = {(each, model) for each in endpoints}
        if len(self.places() | places) > MAX_HELD:
            raise TooManyHeld(f"{MAX_HELD} models of replicas are being unloaded already")
        self._held.setdefault(holder, set()).update(places)
        await self._control.publish_leaving(self.marks())
        until = self._clock() + TOLD_S
        await self._tell_envoys()
        while missing := tuple(self._untold(endpoints, model))[:MAX_NAMED]:
            if self._clock() >= until:
                return ModelDrained(missing)
            await self._pause(POLL_S)
            await self._tell_envoys()
        until = self._clock() + RUNS_S
        while runs := tuple(self._runs(self._with_others(places)))[:MAX_NAMED]:
            if self._clock() >= until:
                return ModelDrained((), runs)
            await self._pause(POLL_S)
        return ModelDrained()

    async def release(self, holder: Hashable) -> None:
        """Let go of all that a holder holds."""
        if self._held.pop(holder, None) and self._control.revision:
            await self._control.publish_leaving(self.marks())
            await self._tell_envoys()

    def _untold(self, endpoints: Collection[str], model: str) -> Iterator[str]:
        """Yield in words which clients may still send requests for a model to replicas."""
        for name in sorted(endpoints):
            if model not in self._marked(name):
                yield f"pickers have not been told yet of {name}"
        clients = self._clients()
        yield from self._unsure_pickers([each for each in clients if each.kind == "picker"])
        for each in clients:
            if each.kind == "envoy" and any(
                one.short == "EDS" and one.state not in {"SYNCED", "NOT_SENT"} for one in each.types
            ):
                yield f"Envoy {each.node} has not acknowledged its endpoints"

    def _unsure_pickers(self, pickers: Sequence[ClientView]) -> Iterator[str]:
        uses, here = self._reports.uses(), {each.node for each in pickers}
        for each in pickers:
            synced = any(one.short == "POOL" and one.state == "SYNCED" for one in each.types)
            use = uses.get(each.node)
            if use is None:
                yield f"picker {each.node} has not reported yet"
            elif not synced or not use.includes(each.pools_acked, each.connected_s):
                yield f"picker {each.node} has not acknowledged it"
            elif use.age_s > RECENT_S:
                yield f"picker {each.node} has not reported for {use.age_s:.0f} s"
        missing = max(0, len(self._control.fleet.pickers.addresses) - len(pickers))
        gone = [each for each in self._reports.gone() if each not in here][:missing]
        yield from (f"picker {name} is not connected" for name in gone)
        if missing > len(gone):
            yield f"{missing - len(gone)} of the fleet's pickers are not connected"

    def _with_others(self, places: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those places whose requests another replica of the variant may get."""
        leaving = self.places()
        found: set[tuple[str, str]] = set()
        for pool in self._control.fleet.pools:
            variants = {
                each.id: pool.variant_of(each) for each in pool.endpoints if not each.draining
            }
            for endpoint, model in places:
                if any(
                    (other, model) not in leaving and variant == variants.get(endpoint)
                    for other, variant in variants.items()
                ):
                    found.add((endpoint, model))
        return found

    def _runs(self, places: Collection[tuple[str, str]]) -> Iterator[str]:
        for name, use in sorted(self._reports.uses().items()):
            for endpoint, model in sorted(places):
                count = use.leaving.get((endpoint, model), 0)
                if count:
                    requests = "1 request" if count == 1 else f"{count} requests"
                    yield f"picker {name}: {requests} for {model} on {endpoint}"
