"""The keeper of canaries: looks at all rollouts, and makes their transitions.

Rules:

1. It looks every ``EVERY_S`` seconds. A transition is stored as intended, made as one revision with
   its numbers as the reason, and stored as made. A kill between two of these is mended at the
   start (``CanaryController.resumed``).
2. Weights are changed only from those that were looked at: an operator's change that comes in
   between is not overwritten, and pauses the rollout at the next look.
3. One thing at a time: looks, starts and operators' calls wait for each other. A call may name the
   number of transitions that its operator has seen; after another one it is refused.
4. A rollback is made even if the store cannot be written, and may take a variant's last replica.
5. At most one rollout of a pool runs, and the last of each of ``MAX_POOLS`` pools is kept.
6. A transition that fails is logged, and tried again with the next look.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from xds_server.applications.canary.controller import (
    CanaryController,
    StartError,
    line_of,
    report_of,
    spec_of,
)
from xds_server.applications.canary.plan import CanaryPlan, default_plan
from xds_server.applications.canary.rollout import ActionError, RolloutPhase
from xds_server.control.operation import Busy, ChangeOptions
from xds_server.fleet.change import BadChange, UnknownName, set_weights
from xds_server.fleet.guards.last import LastReplica
from xds_server.fleet.load import FleetError
from xds_server.fleet.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from tidegate_common.canary import SessionRecord
    from xds_server.applications.canary.guards import ArmReplicas
    from xds_server.applications.canary.rollout import Transition
    from xds_server.control.operation import Change
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.view import CanaryMark

    class WeightControl(Protocol):
        """The fleet in force, and changes of its weights."""

        @property
        def written(self) -> Fleet:
            """The fleet of the revision in force."""

        async def change(self, edit: Callable[[Fleet], Fleet], options: ChangeOptions) -> Change:
            """Make an edit of the fleet in force the fleet in force."""

        def mark_canaries(self, marks: Mapping[str, CanaryMark]) -> None:
            """Tell pickers of these rollouts, by pool, with the weights that come next."""


EVERY_S: Final = 5.0
MAX_POOLS: Final = 256
AUTHOR: Final = "canary"
"""Author of the revisions that no operator asked for."""

_log = structlog.get_logger(__name__)


class CanaryKeeper:
    """All rollouts; see the module's rules.

    Args:
        control: The fleet in force.
        replicas: Returns the replicas of a pool's variant, as pickers and loads see them.
        store: Stores all rollouts, as text.
        unix_s: Wall clock, Unix seconds.
        chance: Returns a random number in [0, 1).
        alerts: Returns the alerts that fire for a pool.
    """

    def __init__(
        self,
        control: WeightControl,
        replicas: Callable[[str, str], ArmReplicas],
        store: Callable[[str], Awaitable[None]],
        unix_s: Callable[[], float],
        chance: Callable[[], float],
        alerts: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        self._control = control
        self._replicas = replicas
        self._store = store
        self._unix_s = unix_s
        self._chance = chance
        self._alerts = alerts
        self._rollouts: dict[str, CanaryController] = {}
        self._again: dict[str, Transition] = {}
        """Transitions that a restart found unfinished."""
        self._one = asyncio.Lock()
        self.frozen = ""
        """Who froze all rollouts, and why; empty = they go on."""

    def recall(self, text: str) -> None:
        """Take what was stored, before a fleet is in force.

        Raises:
            ValueError: The text is something else.
        """
        try:
            told = json.loads(text)
            found = {
                pool: CanaryController.restored(each) for pool, each in told["rollouts"].items()
            }
            self.frozen = told["frozen"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"no stored rollouts: {error!r}") from error
        self._rollouts = found
        self._mark()

    def settle(self) -> None:
        """Compare what was recalled with the weights in force, before the first look."""
        for pool, each in self._rollouts.items():
            again = each.resumed(self._weights(pool), self._unix_s())
            if again is not None:
                self._again[pool] = again

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Look at all rollouts once, and make what comes next."""
        async with self._one:
            for pool in list(self._rollouts):
                try:
                    await self._look(pool)
                except (BadChange, Busy, FleetError, LastReplica, StoreError, UnknownName) as error:
                    _log.warning("canary_step_failed", pool=pool, error=str(error))

    def take(
        self,
        pool: str,
        rollout: str,
        picker: str,
        records: Iterable[SessionRecord],
        limit: int,
        until_s: float,
    ) -> None:
        """Take a picker's report of a rollout; one of another rollout is left out."""
        found = self._rollouts.get(pool)
        if found is not None and found.spec.rollout == rollout and not found.state.phase.ended:
            found.take(picker, records, limit, until_s)

    async def start(
        self,
        pool: str,
        canary: str,
        who: str,
        *,
        plan: CanaryPlan | None = None,
        sessions_per_s: float | None = None,
        kinds: Sequence[str] = ("first-token",),
        cache: bool = False,
    ) -> str:
        """Start a rollout, make its first step, and return its line.

        Args:
            pool: The pool's name.
            canary: The variant that is to get everything.
            who: The operator.
            plan: How it goes; ``None`` = the default for the traffic.
            sessions_per_s: Sessions that begin in the pool; ``None`` = not known.
            kinds: The kinds of times that the pool can measure.
            cache: Whether its replicas tell cached tokens.

        Raises:
            StartError: A rollout runs, or the pool's weights do not allow it.
            CanaryPlanError: The plan breaks a rule.
            ActionError: All rollouts are frozen.
        """
        async with self._one:
            if self.frozen:
                raise ActionError(f"start: frozen by {self.frozen}")
            running = self._rollouts.get(pool)
            if running is not None and not running.state.phase.ended:
                raise StartError(f"pool {pool}: {line_of(running, [])}; abort it first")
            if running is None and len(self._rollouts) >= MAX_POOLS:
                self._forget()
            now_s = self._unix_s()
            rollout = f"{pool}-{int(now_s * 1000.0)}"
            weights = self._weights(pool)
            if not weights:
                raise StartError(f"there is no pool {pool}")
            spec = spec_of(rollout, pool, weights, canary, self._chance())
            made = CanaryController(
                spec, plan or default_plan(sessions_per_s), now_s, kinds=kinds, cache=cache
            )
            self._rollouts[pool] = made
            try:
                await self._look(pool)
            except Exception:
                del self._rollouts[pool]
                self._mark()
                raise
            _log.info("canary_started", pool=pool, canary=canary, by=who)
            return line_of(made, [])

    async def ask(self, pool: str, verb: str, who: str, seen: int | None = None) -> str:
        """Do what an operator asks for; return the rollout's line.

        Args:
            pool: The pool's name.
            verb: ``pause``, ``resume``, ``promote`` or ``abort``.
            who: The operator.
            seen: Transitions that the operator has seen; ``None`` = not told.

        Raises:
            ActionError: There is no rollout, it cannot do that, or has changed meanwhile.
            BadChange: The weights were changed meanwhile.
            StoreError: It could not be stored.
        """
        async with self._one:
            found = self._rollouts.get(pool)
            if found is None:
                raise ActionError(f"{verb}: pool {pool} has no rollout")
            if seen is not None and seen != len(found.log):
                raise ActionError(f"{verb}: changed meanwhile: {line_of(found, [])}; look again")
            await self._make(pool, found.ask(verb, who), who)
            return line_of(found, [])

    async def freeze(self, who: str) -> None:
        """Make no transition by itself, anywhere, until it is called with an empty name."""
        async with self._one:
            self.frozen = who
            await self._keep()

    def lines(self) -> list[str]:
        """Return a line for each rollout that has not ended."""
        found = []
        for pool, each in sorted(self._rollouts.items()):
            if not each.state.phase.ended:
                lacking = each.waiting_for(each.view(self._unix_s(), *self._seen(pool)))
                frozen = f"frozen by {self.frozen}"
                found.append(line_of(each, [frozen, *lacking] if self.frozen else lacking))
        return found

    def report(self, pool: str) -> dict[str, Any]:
        """Return what a pool's last rollout compared and cost.

        Raises:
            ActionError: It had none.
        """
        if pool not in self._rollouts:
            raise ActionError(f"report: pool {pool} has had no rollout")
        return report_of(self._rollouts[pool])

    async def _look(self, pool: str) -> None:
        found, again = self._rollouts[pool], self._again.get(pool)
        if again is not None:
            await self._make(pool, again, AUTHOR)
            del self._again[pool]
            return
        if found.state.phase.ended:
            return
        folded = found.folded
        step = found.look(
            self._unix_s(), *self._seen(pool), alerts=self._alerts(pool), frozen=bool(self.frozen)
        )
        if step is not None:
            await self._make(pool, step, AUTHOR)
        elif found.folded != folded:
            await self._keep()

    async def _make(self, pool: str, step: Transition, author: str) -> None:
        """Make a transition (rule 1)."""
        found = self._rollouts[pool]
        back = step.phase in {RolloutPhase.ROLLED_BACK, RolloutPhase.ABORTED}
        before = self._weights(pool)
        weights = found.weights_after(step)
        if weights is not None:  # what is gone from the pool has none
            weights = {name: weight for name, weight in weights.items() if name in before}
        was = found.state
        found.intend(step)
        try:
            await self._keep(anyhow=back)
            self._mark()
            if weights is not None and weights != before:
                reason = f"canary {found.spec.canary}: {step.reason}"
                options = ChangeOptions(author, reason, relief=back, force=back)
                wanted = weights
                await self._control.change(
                    lambda fleet: set_weights(fleet, pool, wanted, before), options
                )
        except Exception:
            found.state = was
            raise
        found.done(step, self._unix_s())
        self._mark()
        _log.info("canary_step", pool=pool, phase=step.phase.value, reason=step.reason)
        await self._keep(anyhow=back)

    def _mark(self) -> None:
        running = {p: each for p, each in self._rollouts.items() if not each.state.phase.ended}
        self._control.mark_canaries({pool: each.mark for pool, each in running.items()})

    async def _keep(self, *, anyhow: bool = False) -> None:
        told = {pool: each.dump() for pool, each in self._rollouts.items()}
        try:
            await self._store(json.dumps({"frozen": self.frozen, "rollouts": told}))
        except StoreError as error:
            if not anyhow:
                raise
            _log.warning("canary_not_stored", error=str(error))

    def _forget(self) -> None:
        ended = [pool for pool, each in self._rollouts.items() if each.state.phase.ended]
        if not ended:
            raise StartError(f"{MAX_POOLS} rollouts run already")
        del self._rollouts[ended[0]]

    def _seen(self, pool: str) -> tuple[dict[str, int], ArmReplicas, ArmReplicas]:
        spec = self._rollouts[pool].spec
        canary, stable = self._replicas(pool, spec.canary), self._replicas(pool, spec.stable)
        return self._weights(pool), canary, stable

    def _weights(self, pool: str) -> dict[str, int]:
        for each in self._control.written.pools:
            if each.name == pool:
                return {variant.name: variant.weight for variant in each.variants}
        return {}
