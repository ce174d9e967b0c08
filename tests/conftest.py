"""Settings for all tests."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

from ext_proc.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same examples in every run; a search for new ones is a run of its own:
# `pytest --hypothesis-profile=search`. Neither a deadline nor a check of how long examples take to
# make: a busy machine is no failure.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **UNTIMED)
settings.register_profile("search", max_examples=2000, **UNTIMED)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, where the picker is compiled, tests that replace something of ours.

    Compiled code does not look its own constants and methods up.
    """
    if not compiled():
        return
    replacing = [item for item in items if "monkeypatch" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=replacing)
    items[:] = [item for item in items if item not in replacing]


@pytest.fixture(autouse=True)
def _logs_of_its_own() -> Iterator[None]:
    """Leave no logger behind that writes into what a test's end has closed."""
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    yield
    structlog.reset_defaults()
    root.setLevel(before[0])
    root.handlers[:] = before[1]
