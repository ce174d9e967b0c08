"""An ejection with a clock that tests move."""

from __future__ import annotations

from ext_proc.routing.health.ejection import Ejection
from ext_proc.routing.health.ejection_record import Cause, Phase
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.routing.values.settings import Outlier

RULES = Outlier(consecutive_failures=3, base_ejection_s=10.0, frozen_after_s=30.0)


def key(number: int) -> EndpointKey:
    return EndpointKey(f"r{number}", 1)


class Case:
    """An ejection over some replicas, and the ejections that it reported."""

    def __init__(self, build, count: int = 4, rules: Outlier = RULES) -> None:
        self.reported: list[tuple[EndpointKey, Cause]] = []
        self.ejection = Ejection(lambda one, cause: self.reported.append((one, cause)))
        self.ejection.set_pool(build.pool(count, outlier=rules))

    def fail(self, number: int, times: int = 3, now: float = 0.0, *, answered: bool = False):
        for _ in range(times):
            self.ejection.bad(key(number), now, answered=answered)

    def phase(self, number: int) -> Phase:
        return self.ejection.phase(key(number))
