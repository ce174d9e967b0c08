"""Scheduling contexts for the policy tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.contexts import make

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.state.candidates import SchedulingContext


@pytest.fixture(scope="session")
def context() -> Callable[..., SchedulingContext]:
    """Return a factory of scheduling contexts: idle, equal and cold unless changed."""
    return make
