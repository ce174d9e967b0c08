"""The evidence of a rollout: minutes of counts in, checks out. Pure.

Rules:

1. Minutes are folded in their order, each once, when no picker that was heard may add to it any
   more. CanaryEvidence goes on over steps: a cell of failures has the shares that were in force.
2. ``failures`` weighs ``FAILURES_WEIGHT``; the other checks share the rest. Weights are fixed when
   the rollout begins, by what its pool can measure, so that the weighted mean stays an e-value.
3. For failures, "not worse" is a ratio below the margin *or* a canary that hardly ever fails
   (``floor``): where nothing fails, ratios show nothing.
4. p99 of a time is a guard and no condition: it can end a rollout, and need not be shown.
"""

from __future__ import annotations

from collections import Counter, deque
from math import exp, log
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xds_server.applications.canary.statistics.cache import CacheCell, CacheEvidence
from xds_server.applications.canary.statistics.mixture import log_mean
from xds_server.applications.canary.statistics.rates import (
    FailureCell,
    interval,
    log_below,
    log_not_worse,
    log_worse,
)
from xds_server.applications.canary.statistics.times import QUANTILES, TimeCell, TimeEvidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FAILURES: Final = "failures"
CACHE: Final = "cache"
KINDS: Final = ("first-token", "per-token", "whole")
"""Kinds of times: to the first token, for each token after it, to the end."""
FAILURES_WEIGHT: Final = 0.4
SLOPE_MINUTES: Final = 10
"""Minutes over which an estimate takes the pace of the evidence."""
INTERVAL_E: Final = 40.0
"""E-value of each end of an interval: 95 % for both."""
SHOWN: Final = 1e6
_HIGHEST_CONDITION: Final = 0.9


class Margins(NamedTuple):
    """The differences that matter."""

    failure_ratio: float = 1.5
    """How many times as often canary sessions may fail."""
    failure_floor: float = 0.005
    """Share of failing canary sessions that is good enough, whatever stable's is."""
    time: float = 0.10
    """How much slower the canary may be; 0.1 is ten per cent."""


DEFAULT: Final = Margins()
_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})


class Minute(NamedTuple):
    """What was counted in a minute, of all pickers."""

    failures: Mapping[tuple[float, float], tuple[int, int]] = _NONE
    """First failures of canary and stable, by the shares of ``FailureCell``."""
    begun: tuple[int, int] = (0, 0)
    """Sessions of canary and stable that began."""
    known: tuple[int, int] = (0, 0)
    """Canary sessions whose outcome became known, and those of them that failed."""
    times: Mapping[str, Mapping[str, TimeCell]] = _NONE
    """Times of first requests, by kind and stratum."""
    cache: CacheCell = CacheCell(0, 0, 0, 0)


class CanaryCheck(NamedTuple):
    """What one comparison shows."""

    name: str
    """Such as ``failures`` or ``first-token p90``."""
    weight: float
    """All weights together are 1."""
    log_worse: float
    """Log e-value against "worse by at most the margin"."""
    log_not_worse: float
    """Log e-value against "worse by the margin or more"."""
    condition: bool
    """Whether 100 % needs ``log_not_worse``."""
    timed: bool
    """Whether the load of replicas changes it."""
    gain: float | None
    """What ``log_not_worse`` gained in the last minutes, per minute; ``None`` = not known yet."""


class CanaryEvidence:
    """See the module's rules.

    Args:
        margins: The differences that matter.
        kinds: The kinds of times that the pool can measure, of ``KINDS``.
        cache: Whether its replicas tell cached tokens.
    """

    def __init__(
        self, margins: Margins = DEFAULT, kinds: Sequence[str] = KINDS[:1], *, cache: bool = False
    ) -> None:
        self._margins = margins
        self._failures: Counter[tuple[float, float, int]] = Counter()
        self._times = {each: TimeEvidence(margins.time) for each in kinds}
        self._cache = CacheEvidence() if cache else None
        self._past: deque[dict[str, float]] = deque(maxlen=SLOPE_MINUTES)
        self.begun = (0, 0)
        """Sessions of canary and stable that began."""
        self.known = (0, 0)
        """Canary sessions whose outcome is known, and those of them that failed."""
        self._checks: list[CanaryCheck] | None = None

    def fold(self, minute: Minute) -> None:
        """Take a minute that is over."""
        self._past.append({each.name: each.log_not_worse for each in self.checks()})
        for (canary_share, stable_share), counts in minute.failures.items():
            for arm, count in enumerate(counts):
                self._failures[canary_share, stable_share, arm] += count
        self.begun = (self.begun[0] + minute.begun[0], self.begun[1] + minute.begun[1])
        self.known = (self.known[0] + minute.known[0], self.known[1] + minute.known[1])
        for kind, evidence in self._times.items():
            evidence.fold(minute.times.get(kind, {}))
        if self._cache is not None:
            self._cache.fold(minute.cache)
        self._checks = None

    @property
    def failed(self) -> tuple[int, int]:
        """Sessions of canary and stable that failed."""
        found = [0, 0]
        for (_, _, arm), count in self._failures.items():
            found[arm] += count
        return found[0], found[1]

    @property
    def cells(self) -> list[FailureCell]:
        """The first failures by the shares in force."""
        return [
            FailureCell(a, b, self._failures[a, b, 0], self._failures[a, b, 1])
            for a, b in sorted({(a, b) for a, b, _ in self._failures})
        ]

    def failure_interval(self) -> tuple[float, float]:
        """Return the bounds of the ratio of failure rates: 95 % at whatever moment one looks."""
        return interval(self.cells, INTERVAL_E)

    def checks(self) -> list[CanaryCheck]:
        """Return what each comparison shows."""
        if self._checks is None:
            self._checks = self._compared()
        return self._checks

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "failures": [[*key, count] for key, count in sorted(self._failures.items())],
            "begun": self.begun,
            "known": self.known,
            "times": {kind: each.dump() for kind, each in self._times.items()},
            "cache": None if self._cache is None else self._cache.dump(),
        }

    @classmethod
    def restored(cls, margins: Margins, state: Mapping[str, Any]) -> CanaryEvidence:
        """Return the evidence whose state ``dump`` returned."""
        made = cls(margins, tuple(state["times"]), cache=state["cache"] is not None)
        made._failures.update({(a, b, arm): count for a, b, arm, count in state["failures"]})
        made.begun = (state["begun"][0], state["begun"][1])
        made.known = (state["known"][0], state["known"][1])
        for kind, each in made._times.items():
            each.restore(**state["times"][kind])
        if made._cache is not None:
            made._cache.restore(**state["cache"])
        return made

    def _compared(self) -> list[CanaryCheck]:
        cells, margins = self.cells, self._margins
        ratio = log_not_worse(cells, margins.failure_ratio)
        below = log_below(*self.known, margins.failure_floor)
        others = len(self._times) * len(QUANTILES) + (self._cache is not None)
        weight = (1.0 - FAILURES_WEIGHT) / others if others else 0.0
        found = [
            self._check(
                FAILURES,
                FAILURES_WEIGHT if others else 1.0,
                log_worse(cells, margins.failure_ratio),
                log_mean([ratio, below]),
            )
        ]
        for kind, each in self._times.items():
            for share in QUANTILES:
                name = f"{kind} p{share * 100:.0f}"
                worse, better = each.log_worse(share), each.log_not_worse(share)
                condition = share <= _HIGHEST_CONDITION
                check = self._check(name, weight, worse, better, condition=condition, timed=True)
                found.append(check)
        if self._cache is not None:
            worse, better = self._cache.log_worse, self._cache.log_not_worse
            found.append(self._check(CACHE, weight, worse, better))
        return found

    def _check(
        self,
        name: str,
        weight: float,
        worse: float,
        better: float,
        *,
        condition: bool = True,
        timed: bool = False,
    ) -> CanaryCheck:
        gain = (better - self._past[0][name]) / len(self._past) if self._past else None
        return CanaryCheck(name, weight, worse, better, condition, timed, gain)


def shown(log_e: float) -> float:
    """Return an e-value as a number that can be shown: at most ``SHOWN``."""
    return exp(min(log_e, log(SHOWN)))
