"""Settings for all tests."""

from __future__ import annotations

import gc
import itertools
import logging
import os
from asyncio.selector_events import BaseSelectorEventLoop
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from ext_proc.compiled import compiled
from support.worker_template import WorkerTemplate

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same examples in every run; a search for new ones is a run of its own:
# `pytest --hypothesis-profile=search`. Neither a deadline nor a check of how long examples take to
# make: a busy machine is no failure.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **UNTIMED)
settings.register_profile("search", max_examples=2000, **UNTIMED)
settings.load_profile("repeatable")
# Hypothesis draws constants of the modules that are loaded, too. A worker has loaded what the files
# need that it has run, so the examples would differ from run to run.
_get_local_constants: Any = providers._get_local_constants


def _constants() -> object:
    repeatable = settings.get_current_profile_name() == "repeatable"
    return providers._local_constants if repeatable else _get_local_constants()


setattr(providers, "_get_local_constants", _constants)  # noqa: B010 - private


# A fifteenth of the CPU time of unit tests went into looking for garbage, mostly at what the
# collection of tests had made.
gc.set_threshold(10_000, 20, 50)


def pytest_collection_finish() -> None:
    """Leave what exists now out of garbage collection."""
    gc.collect()
    gc.freeze()


# Python 3.11 does not close a connection that it has accepted if the server is closed before the
# connection's transport is made; the collection of both as garbage then fails a later test. Envoys
# and pickers connect to replicas for their health at any time, so this happens.
_accept_connection2: Any = vars(BaseSelectorEventLoop)["_accept_connection2"]


async def _accept_or_close(
    loop: BaseSelectorEventLoop,
    protocol_factory: object,
    conn: Any,
    extra: object,
    sslcontext: object = None,
    server: Any = None,
    *more: object,
) -> None:
    """Close a connection whose server is closed; else go on as asyncio does."""
    if server is not None and not server.sockets:
        conn.close()
        return
    await _accept_connection2(loop, protocol_factory, conn, extra, sslcontext, server, *more)


setattr(BaseSelectorEventLoop, "_accept_connection2", _accept_or_close)  # noqa: B010 - private


# pytest-randomly shuffles files and tests. Files keep their order here, and so do the tests of
# files that share running services.
SHARING = tuple(Path(__file__).parent / name for name in ("lab", "process", "soak", "e2e"))
COLLECTED = pytest.StashKey[int]()
_numbers = itertools.count()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Number the tests as their files have them."""
    item.stash[COLLECTED] = next(_numbers)


# First: after pytest-randomly, which wraps this hook, but before pytest brings tests together that
# share a parameter of a module's fixture.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the random order within unit, contract, epp and fuzz files only."""
    first: dict[Path, int] = {}
    for item in items:
        number = item.stash[COLLECTED]
        first[item.path] = min(number, first.get(item.path, number))

    fixed = {path for path in first if any(map(path.is_relative_to, SHARING))}

    def place(item: pytest.Item) -> tuple[int, int]:
        return first[item.path], item.stash[COLLECTED] if item.path in fixed else 0

    items.sort(key=place)  # stable: what has no fixed place keeps its random one
    _leave_out_replacing(config, items)


TEMPLATE = pytest.StashKey[WorkerTemplate]()
"""What forks the workers of a run."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork the workers from a process that has collected.

    Not where branches are measured: those of imports would be missing.
    """
    if os.environ.get("TIDEGATE_PREFORK") == "0" or config.pluginmanager.hasplugin("_cov"):
        return
    config.stash[TEMPLATE] = WorkerTemplate(config.args).__enter__()
    for spec in specs:
        spec.python = config.stash[TEMPLATE].python


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what forks workers."""
    if TEMPLATE in config.stash:
        config.stash[TEMPLATE].__exit__()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Repeat the seed where a test failed: `-q` hides the header that has it."""
    seed = config.getoption("randomly_seed", None)
    if seed is not None and terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line(f"The same order again: --randomly-seed={seed}")


def _leave_out_replacing(config: pytest.Config, items: list[pytest.Item]) -> None:
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
