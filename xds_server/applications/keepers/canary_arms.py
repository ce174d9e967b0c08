"""The replicas of a rollout's variants, as pickers and loads see them.

Rules:

1. A replica *falls* when pickers begin to leave it alone: ejected, not ready, out of memory. One
   that an operator drains does not. What happened before the first look is not known.
2. While the canary gets copies, Tritons of both variants are asked for their statistics. What they
   counted since the first answer is compared; a count that falls is of a new process. Others have
   no such counters: of them only rule 1 and their memory count.
3. Loads that were refused since the rollout began count, and what the replicas of the canary have
   unlike one another; ``compare`` asks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from xds_server.applications.canary.guards import LEAST_COPIES, ArmReplicas, faults_of_copies
from xds_server.applications.loading.operation import MAX_REPLICAS
from xds_server.applications.loading.plan import since, sum_of
from xds_server.applications.traffic.replicas import UNKNOWN
from xds_server.fleet.change import BadChange, UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from xds_server.applications.canary.controller import RolloutSpec
    from xds_server.applications.loading.keeper import LoadKeeper
    from xds_server.applications.loading.plan import Answered
    from xds_server.applications.traffic.picker_runs import Key
    from xds_server.applications.traffic.replicas import State
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.model.fleet import EndpointSpec


STARVED: Final = "low-gpu-memory"
MAX_LOADS: Final = 50
MAX_TOLD: Final = 3
"""Most refusals and differences that are told."""


class _Falls(NamedTuple):
    """What was seen of the replicas of a rollout."""

    rollout: str
    down: set[str]
    times: dict[str, int]


class _Copies(NamedTuple):
    """What replicas counted since a rollout's copies began."""

    last: dict[tuple[str, str], Answered]
    """The newest counts, by replica and model."""
    canary: list[Answered]
    """Those of the canary's replicas that were added."""
    stable: list[Answered]


class CanaryArms:
    """See the module's rules.

    Args:
        control: The fleet in force.
        states: Returns the replicas as pickers see them.
        loads: Operations on models, and questions to replicas; ``None`` = there are none.
    """

    def __init__(
        self,
        control: Control,
        states: Callable[[], Mapping[Key, State]],
        loads: LoadKeeper | None = None,
    ) -> None:
        self._control = control
        self._states = states
        self._loads = loads
        self._falls: dict[str, _Falls] = {}
        self._differences: dict[str, Sequence[str]] = {}
        self._copies: dict[str, _Copies] = {}

    def __call__(self, spec: RolloutSpec, variant: str) -> ArmReplicas:
        """Return the replicas of a variant in a rollout's pool."""
        states, own = self._states(), self._of(spec.pool, variant)
        by_id = {each.id: states.get((spec.pool, each.id), UNKNOWN) for each in own}
        alone = {name for name, state in by_id.items() if state.left_alone}
        usable = sum(not each.draining and each.id not in alone for each in own)
        if variant != spec.canary:
            return ArmReplicas(len(own), usable)
        starved = [
            name
            for name, state in by_id.items()
            if name in alone and any(each.name == STARVED for each in state.conditions)
        ]
        copies = self._copies.get(spec.rollout)
        of_canary = sum_of(copies.canary if copies is not None else ())
        of_stable = sum_of(copies.stable if copies is not None else ())
        return ArmReplicas(
            len(own),
            usable,
            self._fallen(spec, alone),
            starved,
            faults_of_copies(of_canary, of_stable),
            self._refused(spec, by_id.keys()),
            self._differences.get(spec.rollout, ()),
            copies is not None and bool(copies.last) and of_canary.total < LEAST_COPIES,
        )

    async def count(self, specs: Sequence[RolloutSpec]) -> None:
        """Ask the replicas of rollouts whose canaries get copies for their counters (rule 2)."""
        kept = {spec.rollout: self._copies.get(spec.rollout, _Copies({}, [], [])) for spec in specs}
        self._copies = kept
        if self._loads is None:
            return
        for spec in specs:
            copies = kept[spec.rollout]
            for variant, sums in ((spec.canary, copies.canary), (spec.stable, copies.stable)):
                ids = [each.id for each in self._of(spec.pool, variant) if each.http]
                for model in self._models(spec.pool) if ids else ():
                    try:
                        told = await self._loads.actions.answered(
                            spec.pool, model, ids[:MAX_REPLICAS]
                        )
                    except (BadChange, UnknownName):
                        continue  # it was removed meanwhile
                    added = [
                        since(copies.last.get((name, model)), each) for name, each in told.items()
                    ]
                    copies.last.update({(name, model): each for name, each in told.items()})
                    sums[:] = [sum_of([*sums, *added])]

    async def compare(self, specs: Sequence[RolloutSpec]) -> None:
        """Ask the canaries' replicas for their models, and keep in what they differ."""
        found: dict[str, Sequence[str]] = {}
        if self._loads is None:
            return
        for spec in specs:
            ids = tuple(each.id for each in self._of(spec.pool, spec.canary) if each.http)
            told: list[str] = []
            for model in self._models(spec.pool) if len(ids) > 1 else ():
                try:
                    _, unlike = await self._loads.actions.parity(spec.pool, model, ids)
                except (BadChange, UnknownName):
                    continue  # it was removed meanwhile, or has too many replicas to compare
                told += [f"{model}: {each}" for each in unlike]
            found[spec.rollout] = told[:MAX_TOLD]
        self._differences = found

    def _models(self, pool: str) -> Sequence[str]:
        return next((p.match.models for p in self._control.fleet.pools if p.name == pool), ())

    def _of(self, pool: str, variant: str) -> list[EndpointSpec]:
        return [
            each
            for one in self._control.fleet.pools
            if one.name == pool
            for each in one.endpoints
            if one.variant_of(each) == variant and not (each.standby and each.draining)
        ]

    def _fallen(self, spec: RolloutSpec, alone: set[str]) -> list[tuple[str, int]]:
        known = self._falls.get(spec.pool)
        if known is None or known.rollout != spec.rollout:
            known = self._falls[spec.pool] = _Falls(spec.rollout, set(alone), {})
        for name in alone - known.down:
            known.times[name] = known.times.get(name, 0) + 1
        known.down.clear()
        known.down.update(alone)
        return sorted(known.times.items())

    def _refused(self, spec: RolloutSpec, ids: Collection[str]) -> list[str]:
        every = [] if self._loads is None else self._loads.operations(spec.pool, 0, MAX_LOADS)
        return [
            f"{each.model}: {each.why}"
            for each in every
            if each.kind == "load"
            and each.phase in {"undone", "failed"}
            and each.began_unix_ms >= spec.began_s * 1000.0
            and any(target.id in ids for target in each.targets)
        ][:MAX_TOLD]
