"""Takes the policies that other packages offer, once, when a process starts.

A package names them as entry points of ``GROUP``. An entry point is called with a source of
randomness and returns an ``OutsidePolicy``. A name has a point, which none of ours has, so that a
mistyped name is no policy of a package that is not installed.
"""

from __future__ import annotations

import random
import re
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

import structlog

from ext_proc.routing.policies import POLICIES
from ext_proc.routing.policies.outside import INTERFACE, Outside
from tidegate_api.pools import OUTSIDE_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ext_proc.routing.policies.outside import OutsidePolicy
    from ext_proc.routing.values.rng import Rng

GROUP: Final = "tidegate.policies"
MAX_POLICIES: Final = 64
"""Most policies of other packages."""

_log = structlog.stdlib.get_logger("ext_proc.packages")


class PackageError(RuntimeError):
    """A package's policy cannot be taken; the message names both and says what would be right."""


def load_policies(found: Iterable[EntryPoint] | None = None) -> list[str]:
    """Take the policies of all installed packages and return their names.

    Args:
        found: The entry points; ``None`` = those of the installed packages.

    Raises:
        PackageError: One cannot be taken; none is then.
    """
    taken: dict[str, Callable[[Rng], Outside]] = {}
    origins: dict[str, str] = {}
    for point in entry_points(group=GROUP) if found is None else found:
        if origins.setdefault(point.name, point.value) != point.value:
            raise PackageError(f"{_where(point)}: {origins[point.name]} has the name, too")
        taken[point.name] = _taken(point)
    if len(taken) > MAX_POLICIES:
        raise PackageError(
            f"packages offer {len(taken)} policies; at most {MAX_POLICIES} are taken"
        )
    POLICIES.update(taken)
    return sorted(taken)


def _taken(point: EntryPoint) -> Callable[[Rng], Outside]:
    where = _where(point)
    if re.fullmatch(OUTSIDE_POLICY, point.name) is None:
        raise PackageError(f"{where}: a name is `package.policy`, of a-z, 0-9, - and one point")
    try:
        make: Callable[[Rng], Any] = point.load()
        policy = make(random.Random(0))  # noqa: S311 - no secret
    except Exception as error:
        raise PackageError(f"{where}: {type(error).__name__}: {error}") from error
    stated = getattr(policy, "interface", None)
    if stated != INTERFACE:
        raise PackageError(
            f"{where}: it states the interface {stated!r} and this Tidegate has {INTERFACE};"
            " install a version of the package for this one"
        )
    if not callable(getattr(policy, "prices", None)):
        raise PackageError(f"{where}: it has no method `prices`")

    def failed(reason: str) -> None:
        _log.warning("policy_failed", policy=point.name, reason=reason, decides="least-in-flight")

    def made(rng: Rng) -> Outside:
        try:
            outside: OutsidePolicy = make(rng)
        except Exception as error:
            raise ValueError(f"{where}: {type(error).__name__}: {error}") from error
        return Outside(outside, failed)

    return made


def _where(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of {point.dist.name} {point.dist.version}"
    return f"policy {point.name!r}{package} ({point.value})"
