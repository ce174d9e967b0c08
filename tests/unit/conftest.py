"""Holds the unit layer: a test that opens a socket, starts a process or sleeps fails."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.unit_limits import UnitLimits

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent
LIMITS = UnitLimits()


@functools.lru_cache(maxsize=1)
def _alone(session: pytest.Session) -> bool:
    return all(each.path.is_relative_to(FOLDER) for each in session.items)


def _held(item: pytest.Item) -> Iterator[None]:
    """Watch a phase of a test.

    Not beside tests of other layers, as nothing tells what those leave running in the same process.
    """
    if not _alone(item.session):
        return (yield)
    LIMITS.begin()
    try:
        result = yield
    except BaseException:
        _fail(LIMITS.end())
        raise
    _fail(LIMITS.end())
    return result


def _fail(found: str | None) -> None:
    if found is not None:
        raise pytest.fail.Exception(f"a unit test {found}", pytrace=False) from None


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_held)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(_held)
pytest_runtest_teardown = pytest.hookimpl(wrapper=True)(_held)
