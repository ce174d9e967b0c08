"""Tests that start, kill or stop whole processes, renew their certificates or change a listener."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

TOGETHER = {
    **dict.fromkeys(("test_failures", "test_frozen_triton", "test_models"), "tritons"),
    **dict.fromkeys(("test_printed_lines", "test_tritons_over_tls"), "tritons"),
    **dict.fromkeys(("test_stack", "test_workers"), "stacks"),
}
"""Files that run in one worker each, one after another, since they share its Tritons."""


def pytest_configure(config: pytest.Config) -> None:
    """Take the fixtures that these folders share."""
    config.pluginmanager.import_plugin("support.lab")  # once, whoever asks first


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Start the shared Tritons in two workers only, in place of all; begin the longest files."""
    if config.getvalue("dist") != "loadfile":
        return None
    from support.scheduling import LongestFirst  # noqa: PLC0415 - xdist may be off

    class Together(LongestFirst):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return TOGETHER.get(PurePath(file).stem, file)

    return Together(config, log)


@pytest.fixture(scope="session", autouse=True)
def _forked(forked_services: None) -> None:
    """Start services without their imports."""
