"""Policies of other packages are taken at the start, or refused by one clear error."""

from __future__ import annotations

import random
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import structlog

from ext_proc.packages import GROUP, MAX_POLICIES, PackageError, load_policies
from ext_proc.routing.policies import POLICIES, make_policy
from ext_proc.routing.policies.outside import Outside
from support.contexts import make


class Good:
    """A policy of interface 1."""

    interface = 1

    def __init__(self, rng: object) -> None:
        del rng

    def prices(self, offer: Any) -> list[float]:
        """Return equal prices."""
        return [1.0] * len(offer.candidates)


class Mute(Good):
    """A policy without an answer."""

    def prices(self, offer: Any) -> Any:
        """Return nothing."""
        del offer


class Later(Good):
    """A policy of an interface that is not this one."""

    interface = 2


class Once(Good):
    """A policy that can be made once."""

    made = False

    def __init__(self, rng: object) -> None:
        super().__init__(rng)
        if self.made:
            raise RuntimeError("again")
        Once.made = True


class Unstated:
    """No policy."""

    def __init__(self, rng: object) -> None:
        del rng


class Priceless(Unstated):
    """A policy without its method."""

    interface = 1


def point(name: str, what: str) -> EntryPoint:
    """Return an entry point of this module."""
    return EntryPoint(name, f"{__name__}:{what}", GROUP)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a copy of the table of policies, in force during the test."""
    copy = dict(POLICIES)
    for module in ("ext_proc.packages", "ext_proc.routing.policies"):
        monkeypatch.setattr(f"{module}.POLICIES", copy)
    return copy


def test_a_policy_of_a_package_is_made_like_ours(table: dict[str, Any]) -> None:
    """Pools name it; without its package the error says that it is missing."""
    assert load_policies([point("acme.good", "Good")]) == ["acme.good"]
    assert isinstance(make_policy("acme.good", random.Random(0), pool="llm"), Outside)
    assert "acme.good" in table
    with pytest.raises(ValueError, match=r"'acme.gone'; install its package with each picker, or"):
        make_policy("acme.gone", random.Random(0), pool="llm")


def test_a_policy_that_cannot_be_made_for_a_pool_refuses_that_pool(table: dict[str, Any]) -> None:
    """It is an error of the pool, as an unknown name is, whatever the package raises."""
    load_policies([point("acme.once", "Once")])
    with pytest.raises(ValueError, match=r"policy 'acme.once' \(.*:Once\): RuntimeError: again"):
        table["acme.once"](random.Random(0))


def test_the_first_failure_for_a_pool_is_logged(table: dict[str, Any]) -> None:
    """The event names the policy and says what decides instead."""
    load_policies([point("acme.mute", "Mute")])
    with structlog.testing.capture_logs() as logged:
        table["acme.mute"](random.Random(0)).prices(make(1))
    reason = "TypeError: 'NoneType' object is not iterable"
    assert logged == [
        {"event": "policy_failed", "log_level": "warning", "policy": "acme.mute"}
        | {"reason": reason, "decides": "least-in-flight"}
    ]


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([("auto", "Good")], "policy 'auto' .*: a name is `package.policy`"),
        ([("acme.Good", "Good")], "a name is `package.policy`"),
        ([("acme.later", "Later")], "states the interface 2 and this Tidegate has 1; install"),
        ([("acme.none", "Unstated")], "states the interface None"),
        ([("acme.none", "Priceless")], "it has no method `prices`"),
        ([("acme.none", "Missing")], "AttributeError"),
        ([("acme.none", "GROUP")], "TypeError: 'str' object is not callable"),
        ([("acme.two", "Good"), ("acme.two", "Later")], ":Good has the name, too"),
        (
            [(f"acme.p{n}", "Good") for n in range(MAX_POLICIES + 1)],
            f"offer {MAX_POLICIES + 2} policies; at most {MAX_POLICIES}",
        ),
    ],
)
def test_what_cannot_be_taken_is_said_and_nothing_is_taken(
    table: dict[str, Any], points: list[tuple[str, str]], said: str
) -> None:
    """One error names the policy and what would be right."""
    before = set(table)
    with pytest.raises(PackageError, match=said):
        load_policies([point("acme.good", "Good"), *(point(*each) for each in points)])
    assert set(table) == before
