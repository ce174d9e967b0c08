"""The keeper of canaries: looks at all rollouts, and makes their transitions.

Rules:

1. It looks every ``EVERY_S`` seconds, or as often as a plan's ``minute_s`` says. A transition is
   stored as intended, made as one revision with its numbers as the reason, and stored as made. A
   kill between two of these is mended at the start (``CanaryController.resumed``).
2. Weights are changed only from those that were looked at: an operator's change that comes in
   between is not overwritten, and pauses the rollout at the next look.
3. One thing at a time: looks, starts and operators' calls wait for each other. A call names the
   number of transitions that its operator has seen; after another one it is refused. The number
   goes on over the rollouts of a pool. Freezes, which are for all pools, have their own number.
4. A rollback is made even if the store cannot be written, and may take a variant's last replica.
5. At most one rollout of a pool runs, and the last of each of ``MAX_POOLS`` pools is kept.
6. A transition that fails is logged, and tried again with the next look.
7. What pickers tell of a rollout that has ended is part of its cost, and stored with the next look;
   so is what could not be stored.
8. What leaves the weights as they are (a pause, a resumption, a freeze) is a revision, too, with
   its line in place of differences.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import structlog

from xds_server.applications.canary.controller import (
    CanaryController,
    StartError,
    line_of,
    report_of,
    spec_of,
)
from xds_server.applications.canary.guards import NO_ALERTS
from xds_server.applications.canary.plan import (
    CanaryPlan,
    CanaryPlanError,
    plan_of,
    with_words,
)
from xds_server.applications.canary.rollout import ActionError, RolloutPhase
from xds_server.control.operation import Busy, ChangeOptions
from xds_server.fleet.change import BadChange, UnknownName, find_pool, set_shadow, set_weights
from xds_server.fleet.guards.last_replica import LastReplica
from xds_server.fleet.load import FleetError
from xds_server.fleet.model.resilience import Shadow
from xds_server.fleet.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from xds_server.applications.canary.controller import RolloutSpec
    from xds_server.applications.canary.guards import ArmReplicas, PoolAlerts
    from xds_server.applications.canary.rollout import Transition
    from xds_server.applications.traffic.reading import ToldSessions
    from xds_server.control.fleet_control import Control
    from xds_server.fleet.model.fleet import Fleet


EVERY_S: Final = 5.0
LEAST_S: Final = 0.2
"""Seconds between two looks where a plan judges evidence of less than ``EVERY_S`` together."""
COUNT_S: Final = 5.0
"""Longest wait for the counters of replicas, seconds."""
MAX_POOLS: Final = 256
MAX_MISSED: Final = 3
"""Most transitions that the refusal of a call tells."""
AUTHOR: Final = "canary"
"""Author of the revisions that no operator asked for."""

_log = structlog.get_logger(__name__)


class CanaryKeeper:
    """All rollouts; see the module's rules.

    Args:
        control: The fleet in force.
        replicas: Returns the replicas of a variant of a rollout, as pickers and loads see them.
        store: Stores all rollouts, as text.
        unix_s: Wall clock, Unix seconds.
        chance: Returns a random number in [0, 1).
        alerts: Returns what is known of a pool's alerts.
        pickers: Returns the pickers that are connected; one that is not is not waited for.
            ``None`` = that is not known.
        per_s: Returns the requests per second of a pool; ``None`` = not known.
        count: Reads the counters of the replicas of rollouts whose canaries get copies, before
            each look.
        ask: Asks for the alerts of the pools of rollouts, before each look.
    """

    def __init__(
        self,
        control: Control,
        replicas: Callable[[RolloutSpec, str], ArmReplicas],
        store: Callable[[str], Awaitable[None]],
        unix_s: Callable[[], float],
        chance: Callable[[], float],
        alerts: Callable[[str], PoolAlerts] = lambda _: NO_ALERTS,
        pickers: Callable[[], Collection[str] | None] = lambda: None,
        per_s: Callable[[str], float | None] = lambda _: None,
        count: Callable[[Sequence[RolloutSpec]], Awaitable[None]] | None = None,
        ask: Callable[[Sequence[RolloutSpec]], Awaitable[None]] | None = None,
    ) -> None:
        self._control = control
        self._replicas = replicas
        self._store = store
        self._unix_s = unix_s
        self._chance = chance
        self._alerts = alerts
        self._pickers = pickers
        self._per_s = per_s
        self._count = count
        self._ask = ask
        self._rollouts: dict[str, CanaryController] = {}
        self._again: dict[str, Transition] = {}
        """Transitions that a restart found unfinished."""
        self._unstored = False
        """Whether something is to be stored with the next look."""
        self._one = asyncio.Lock()
        self.frozen = ""
        """Who froze all rollouts, and why; empty = they go on."""
        self.freezes = 0
        """Number of freezes and unfreezes so far."""

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
            self.frozen, self.freezes = told["frozen"], told.get("freezes", 0)
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
            running = [each.plan.minute_s for each in self._rollouts.values() if each.running]
            await asyncio.sleep(max(LEAST_S, min([*running, EVERY_S])))

    async def look(self) -> None:
        """Look at all rollouts once, and make what comes next."""
        if self._ask is not None:
            try:
                await self._ask(self.running)
            except Exception:  # noqa: BLE001 - rule 6: no alert may end the rollouts' looks
                _log.exception("canary_look_failed", pool="")
        if self._count is not None:
            try:
                async with asyncio.timeout(COUNT_S):
                    await self._count(self.copying)
            except TimeoutError:
                _log.warning("canary_step_failed", pool="", error="replicas do not answer in time")
        async with self._one:
            for pool in list(self._rollouts):
                try:
                    await self._look(pool)
                except (BadChange, Busy, FleetError, LastReplica, StoreError, UnknownName) as error:
                    _log.warning("canary_step_failed", pool=pool, error=str(error))
                except Exception:  # noqa: BLE001 - rule 6: no rollout may end the others
                    _log.exception("canary_look_failed", pool=pool)
            if self._unstored:
                self._unstored = False
                await self._keep(anyhow=True)

    def take(self, picker: str, told: ToldSessions) -> None:
        """Take a picker's report of a rollout; one of another rollout is left out."""
        found = self._rollouts.get(told.pool)
        if found is not None and found.spec.rollout == told.rollout:
            found.take(picker, told.records, told.limit, told.until_s)
            self._unstored |= bool(told.records) and not found.running

    @property
    def running(self) -> list[RolloutSpec]:
        """The rollouts that have not ended."""
        return [each.spec for each in self._rollouts.values() if each.running]

    @property
    def copying(self) -> list[RolloutSpec]:
        """The rollouts whose canaries get copies of requests now."""
        return [each.spec for each in self._rollouts.values() if each.copies]

    async def begin(
        self,
        pool: str,
        canary: str,
        who: str,
        words: Mapping[str, str],
        reason: str = "",
        seen: int | None = None,
    ) -> str:
        """Start a rollout by the plan of the fleet file; return its line.

        Args:
            pool: The pool's name.
            canary: The variant that is to get everything.
            who: The operator.
            words: Settings of the plan for this rollout, as text, by name.
            reason: Why, for the history.
            seen: As of ``ask``.

        Raises:
            UnknownName: There is no such pool.
            CanaryPlanError: There is no such setting, or it breaks a rule.
            StartError, ActionError: As ``start`` does.
        """
        found = find_pool(self._control.written, pool)
        spec = with_words(found.canary, words)
        counted = ["per-token"] if "per-token" in spec.times else []
        counted += ["cache"] if spec.cache else []
        if counted and not found.telemetry.usage:
            raise CanaryPlanError(
                f"canary: pool {pool} cannot measure {' and '.join(counted)} without token counts:"
                " set `telemetry: {usage: true}`, or leave it out of `times` and `cache`"
            )
        plan = plan_of(spec, self._per_s(pool))
        return await self.start(
            pool,
            canary,
            who,
            plan=plan,
            kinds=spec.times,
            cache=spec.cache,
            reason=reason,
            seen=seen,
        )

    def refuse_weights(self, pool: str) -> None:
        """Raise if an operator may not set a pool's weights: a rollout moves them.

        Raises:
            ActionError: One runs, and its weights were not set by hand before.
        """
        found = self._rollouts.get(pool)
        if found is not None and found.running and not found.state.touched:
            raise ActionError(
                f"{line_of(found, [])}: it moves the weights; abort it, or set them with --force,"
                " which pauses it"
            )

    async def start(
        self,
        pool: str,
        canary: str,
        who: str,
        *,
        plan: CanaryPlan,
        kinds: Sequence[str] = ("first-token",),
        cache: bool = False,
        reason: str = "",
        seen: int | None = None,
    ) -> str:
        """Start a rollout, make its first step, and return its line.

        Args:
            pool: The pool's name.
            canary: The variant that is to get everything.
            who: The operator.
            plan: How it goes.
            kinds: The kinds of times that the pool can measure.
            cache: Whether its replicas tell cached tokens.
            reason: Why, for the history.
            seen: As of ``ask``.

        Raises:
            StartError: A rollout runs, or the pool's weights do not allow it.
            CanaryPlanError: The plan breaks a rule.
            ActionError: All rollouts are frozen, or the pool's has changed meanwhile.
        """
        async with self._one:
            if self.frozen:
                raise ActionError(f"start: frozen by {self.frozen}")
            self._check_seen("start", pool, seen)
            running = self._rollouts.get(pool)
            if running is not None and running.running:
                raise StartError(f"pool {pool}: {line_of(running, [])}; abort it first")
            if running is None and len(self._rollouts) >= MAX_POOLS:
                self._forget()
            now_s = self._unix_s()
            rollout = f"{pool}-{int(now_s * 1000.0)}"
            weights = self._weights(pool)
            if not weights:
                raise StartError(f"there is no pool {pool}")
            spec = spec_of(rollout, pool, weights, canary, self._chance(), now_s)
            made = CanaryController(
                spec,
                plan,
                now_s,
                kinds=kinds,
                cache=cache,
                transitions=0 if running is None else running.transitions,
            )
            self._rollouts[pool] = made
            try:
                if made.copies:
                    made.copying(now_s)
                    await self._keep()
                    await self._copy(made.spec, who, reason)
                else:
                    await self._look(pool, who, reason)
            except Exception:
                del self._rollouts[pool]
                if running is not None:
                    self._rollouts[pool] = running
                self._mark()
                await self._keep(anyhow=True)  # a restart must not go on with it
                raise
            _log.info("canary_started", pool=pool, canary=canary, by=who)
            return line_of(made, [])

    async def ask(
        self, pool: str, verb: str, who: str, seen: int | None = None, reason: str = ""
    ) -> str:
        """Do what an operator asks for; return the rollout's line.

        Args:
            pool: The pool's name.
            verb: ``pause``, ``resume``, ``promote`` or ``abort``.
            who: The operator.
            seen: Transitions that the operator has seen; ``None`` = any will do.
            reason: Why, for the history.

        Raises:
            ActionError: There is no rollout, it cannot do that, or has changed meanwhile.
            BadChange: The weights were changed meanwhile.
            StoreError: It could not be stored.
        """
        async with self._one:
            found = self._rollouts.get(pool)
            if found is None:
                raise ActionError(f"{verb}: pool {pool} has no rollout")
            self._check_seen(verb, pool, seen)
            said = f"{who} ({reason})" if reason else who
            await self._make(pool, found.ask(verb, said), who)
            return line_of(found, [])

    async def freeze(
        self, who: str, why: str = "", seen: int | None = None, *, frozen: bool = True
    ) -> None:
        """Make no transition by itself, anywhere; or go on.

        Args:
            who: The operator.
            why: The reason, for the history.
            seen: Freezes and unfreezes that the operator has seen; ``None`` = any will do.
            frozen: Whether to freeze.

        Raises:
            ActionError: Another operator froze or unfroze them meanwhile.
            StoreError: It could not be stored; until a restart it holds.
        """
        async with self._one:
            if seen not in {None, self.freezes}:
                raise ActionError(
                    f"{'freeze' if frozen else 'unfreeze'}: changed meanwhile, freezes are at"
                    f" {self.freezes} and you have seen {seen};"
                    f" {f'frozen by {self.frozen}' if self.frozen else 'nothing is frozen'}."
                    " Look again: tidegate canary status"
                )
            self.frozen = (f"{who}: {why}" if why else who) if frozen else ""
            self.freezes += 1
            await self._keep()
            try:
                await self._note("all rollouts frozen" if frozen else "rollouts go on", who, why)
            except (Busy, FleetError, StoreError) as error:  # it holds without its revision
                _log.warning("canary_step_failed", pool="", error=str(error))

    def lines(self) -> list[str]:
        """Return a line for each rollout that has not ended."""
        found = []
        for pool, each in sorted(self._rollouts.items()):
            if each.running:
                found.append(line_of(each, self.lacking(pool)))
        return found

    def lacking(self, pool: str) -> list[str]:
        """Return what the next step of a pool's rollout still needs, in words."""
        found = self._rollouts[pool]
        if not found.running:
            return []
        view = found.view(self._unix_s(), *self._seen(pool), alerts=self._alerts(pool))
        lacking = found.waiting_for(view)
        return [f"frozen by {self.frozen}", *lacking] if self.frozen else lacking

    def rollouts(self, pool: str = "") -> dict[str, CanaryController]:
        """Return the last rollout of each pool; ``pool`` = of this one only."""
        return {name: each for name, each in sorted(self._rollouts.items()) if pool in {"", name}}

    def report(self, pool: str) -> dict[str, Any]:
        """Return what a pool's last rollout compared and cost.

        Raises:
            ActionError: It had none.
        """
        if pool not in self._rollouts:
            raise ActionError(f"report: pool {pool} has had no rollout")
        return report_of(self._rollouts[pool])

    async def _look(self, pool: str, who: str = AUTHOR, why: str = "") -> None:
        found, again = self._rollouts[pool], self._again.get(pool)
        if again is not None:
            await self._make(pool, again, AUTHOR)
            del self._again[pool]
            return
        if not found.running:
            return
        connected = self._pickers()
        for each in found.book.silent(self._unix_s()):
            if connected is not None and each not in connected:
                found.book.gone(each)
        folded = found.folded
        step = found.look(
            self._unix_s(), *self._seen(pool), alerts=self._alerts(pool), frozen=bool(self.frozen)
        )
        if step is not None:
            await self._make(pool, step, who, why)
        elif found.folded != folded:
            await self._keep()

    async def _make(self, pool: str, step: Transition, author: str, why: str = "") -> None:
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
            copied = found.plan.shadow and _copied(self._control.written, found.spec)
            if not copied and (weights is None or weights == before):
                said = f"canary {found.spec.canary} of pool {pool}: {step.reason}"
                await self._note(said, author, why, relief=back)
            else:
                reason = _said(found.spec, step.reason, why)
                options = ChangeOptions(author, reason, relief=back, force=back)
                wanted = before if weights is None else weights
                await self._control.change(
                    lambda fleet: set_weights(
                        set_shadow(fleet, pool, None) if copied else fleet, pool, wanted, before
                    ),
                    options,
                )
        except Exception:
            found.state = was
            raise
        found.done(step, self._unix_s())
        self._mark()
        _log.info("canary_step", pool=pool, phase=step.phase.value, reason=step.reason)
        await self._keep(anyhow=True)  # it is made, and what is stored says that it was intended

    async def _note(self, what: str, who: str, why: str, *, relief: bool = False) -> None:
        """Make what leaves the fleet as it is a revision (rule 8)."""
        reason = f"{what} ({why})" if why else what
        options = ChangeOptions(who, reason, relief=relief, note=what)
        await self._control.change(lambda fleet: fleet, options)

    def _check_seen(self, verb: str, pool: str, seen: int | None) -> None:
        """Raise if a pool's rollouts made other transitions than an operator has seen (rule 3).

        Raises:
            ActionError: They did; the message tells the last of those that are new.
        """
        found = self._rollouts.get(pool)
        now = 0 if found is None else found.transitions
        if seen is None or seen == now:
            return
        news = [] if found is None else found.log[-min(max(now - seen, 1), MAX_MISSED) :]
        said = "; ".join(f"{each.phase} at {each.percent:g} %: {each.reason}" for each in news)
        raise ActionError(
            f"{verb}: pool {pool} changed meanwhile, it is at {now} transitions and you have seen"
            f" {seen}{'; ' if said else ''}{said}. Look again: tidegate canary status {pool}"
        )

    async def _copy(self, spec: RolloutSpec, who: str, why: str) -> None:
        """Send the canary copies of the pool's requests."""
        if find_pool(self._control.written, spec.pool).shadow is not None:
            raise StartError(f"pool {spec.pool}: it has a shadow already; remove it first")
        options = ChangeOptions(who, _said(spec, "copies of all requests first", why))
        copies = Shadow(variant=spec.canary)
        await self._control.change(lambda fleet: set_shadow(fleet, spec.pool, copies), options)

    def _mark(self) -> None:
        running = {pool: each for pool, each in self._rollouts.items() if each.running}
        self._control.mark_canaries({pool: each.mark for pool, each in running.items()})

    async def _keep(self, *, anyhow: bool = False) -> None:
        told = {pool: each.dump() for pool, each in self._rollouts.items()}
        try:
            state = {"frozen": self.frozen, "freezes": self.freezes, "rollouts": told}
            await self._store(json.dumps(state))
        except StoreError as error:
            if not anyhow:
                raise
            _log.warning("canary_not_stored", error=str(error))
            self._unstored = True

    def _forget(self) -> None:
        ended = [pool for pool, each in self._rollouts.items() if each.state.phase.ended]
        if not ended:
            raise StartError(f"{MAX_POOLS} rollouts run already")
        del self._rollouts[ended[0]]

    def _seen(self, pool: str) -> tuple[dict[str, int], ArmReplicas, ArmReplicas]:
        spec = self._rollouts[pool].spec
        canary, stable = self._replicas(spec, spec.canary), self._replicas(spec, spec.stable)
        return self._weights(pool), canary, stable

    def _weights(self, pool: str) -> dict[str, int]:
        for each in self._control.written.pools:
            if each.name == pool:
                return {variant.name: variant.weight for variant in each.variants}
        return {}


def _said(spec: RolloutSpec, what: str, why: str) -> str:
    """Return the reason of a revision; ``why`` is the operator's, which may be empty."""
    return f"canary {spec.canary}: {what}" + (f" ({why})" if why else "")


def _copied(fleet: Fleet, spec: RolloutSpec) -> bool:
    """Return whether a rollout's canary gets copies of the pool's requests."""
    pools = {each.name: each for each in fleet.pools}
    shadow = pools[spec.pool].shadow if spec.pool in pools else None
    return shadow is not None and shadow.pool is None and shadow.variant == spec.canary
