"""Schedules of faults over real processes, drawn from a seed. Pure."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PARTS: Final = {
    "envoy": 2,
    "picker": 3,
    "control": 2,
    "etcd": 3,
    "llm": 2,
    "counter": 2,
}
"""Groups of parts, and how many each has; the last two are replicas, by their pool."""
LINKS: Final = (
    ("envoy", "picker"),
    ("envoy", "control"),
    ("envoy", "llm"),
    ("envoy", "counter"),
    ("picker", "picker"),
    ("picker", "control"),
    ("picker", "llm"),
    ("picker", "counter"),
    ("control", "etcd"),
    ("etcd", "etcd"),
)
"""Groups of parts, each with the groups that it calls."""
KINDS: Final = {
    "kill": tuple(PARTS),
    "stop": tuple(PARTS),
    "disk": ("picker", "control", "etcd"),
    "descriptors": tuple(PARTS),
    "memory": ("envoy", "picker", "control", "etcd"),
    "dark": ("llm", "counter"),
    "cut": LINKS,
    "cut there": LINKS,
    "cut back": LINKS,
    "slow": LINKS,
}
"""Kinds of faults and what they may hit. ``dark``: pages of metrics hang; ``cut there``: nothing
passes from the first of a link to the second. The simulation steps clocks, as nothing steps that of
one process from outside."""


class Fault(NamedTuple):
    """A fault."""

    number: int
    kind: str
    parts: tuple[str, ...]
    """The part, or both ends of a link, such as ``picker-1``."""
    after_s: float
    """Between the start of the fault before and this one's."""
    lasts_s: float

    @property
    def groups(self) -> frozenset[str]:
        """Groups of the parts: of each at most one fault is in force."""
        return frozenset(map(group, self.parts))

    def __str__(self) -> str:
        where = " - ".join(self.parts)
        return (
            f"{self.number}: after {self.after_s:.1f} s {self.kind} {where}, {self.lasts_s:.1f} s"
        )


def group(part: str) -> str:
    """Return the group of a part."""
    return part.rpartition("-")[0]


def members(name: str) -> list[str]:
    """Return the parts of a group."""
    return [f"{name}-{number}" for number in range(1, PARTS[name] + 1)]


def drawn(seed: int, count: int) -> list[Fault]:
    """Return a schedule of so many faults."""
    rng = Random(seed)
    made = []
    for number in range(count):
        kind = rng.choice(list(KINDS))
        at = rng.choice(KINDS[kind])
        ends = (at,) if isinstance(at, str) else at
        if len(set(ends)) < len(ends):
            parts = tuple(rng.sample(members(ends[0]), len(ends)))
        else:
            parts = tuple(rng.choice(members(each)) for each in ends)
        after_s, lasts_s = min(4.0, rng.expovariate(1 / 1.2)), rng.uniform(0.3, 4.0)
        made.append(Fault(number, kind, parts, round(after_s, 1), round(lasts_s, 1)))
    return made


def only(faults: Iterable[Fault], numbers: Sequence[int]) -> list[Fault]:
    """Return the faults with these numbers; none = all."""
    return [each for each in faults if not numbers or each.number in numbers]


def halves(faults: Sequence[Fault]) -> list[list[Fault]]:
    """Return what to try in place of a schedule that fails: the later half first, as it is near."""
    middle = len(faults) // 2
    return [list(faults[middle:]), list(faults[:middle])] if middle else []
