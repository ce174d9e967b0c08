"""Tests over running stacks with a real Envoy, which each test leaves as it found it."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Take the fixtures that these folders share."""
    config.pluginmanager.import_plugin("support.lab")  # once, whoever asks first


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Start Tritons in some of the workers only."""
    from support.scheduling import LEAST_WORKERS, FewTritons  # noqa: PLC0415 - xdist may be off

    many = len(config.getoption("tx") or ()) >= LEAST_WORKERS
    return FewTritons(config, log) if many and config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _forked(forked_services: None) -> None:
    """Start services without their imports."""


@pytest.fixture(autouse=True)
def _clean(_left_as_found: None) -> None:
    """Hold that each test leaves the shared stack as it found it."""
