"""The fixtures of ``tests/lab``, ``tests/process`` and ``tests/soak``, as a plugin of pytest.

Each test worker has one set of Triton replicas for all three folders, and stacks over them. A test
that kills or restarts a shared Triton must leave it ready again (``Tritons.restart``).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import pytest

from support.preforked import preforked
from support.replicas import PATIENT
from support.shared_stack import SharedStack
from support.traffic import STREAM_TOKENS
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary
from tidegate.stack.fleet import FleetChange, apply_change
from tidegate.stack.local import LocalStack
from tidegate.stack.processes.supervisor import CrashError
from tidegate.stack.tritons.fleet import Tritons
from tidegate.stack.tritons.replica import find_triton

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


TIME_SCALE = 0.1
"""Time factor of the language model: ten times faster than the default."""


def model_environment() -> dict[str, str]:
    """Return the settings of the language model, which may generate ``STREAM_TOKENS`` tokens."""
    made = {"TOY_LLM_TIME_SCALE": str(TIME_SCALE)}
    if STREAM_TOKENS > 4096:  # its default; a block has 16 tokens
        made["TOY_LLM_MAX_TOKENS"] = str(STREAM_TOKENS)
        made["TOY_LLM_CACHE_BLOCKS"] = str(1024 + STREAM_TOKENS // 16)
    return made


def patient(fleet: dict[str, Any], change: FleetChange | None) -> dict[str, Any]:
    """Return a fleet with generous timeouts for a busy machine, and a test's changes."""
    fleet["pickers"]["timeout"] = PATIENT
    for pool in fleet["pools"]:
        pool["health"]["timeout"] = PATIENT
    return apply_change(fleet, change)


class StackFactory(Protocol):
    """Starts a stack over the session's replicas, or over replicas given by keyword."""

    async def __call__(self, **options: Any) -> LocalStack:
        """Start a stack; the fixture stops it."""


@pytest.fixture(scope="session")
def forked_services() -> Iterator[None]:
    """Start the services without their imports, which would take a third of the time."""
    with preforked():
        yield


@pytest.fixture(scope="session")
def demo_extra() -> None:
    """Skip the tests if Envoy or Triton is not installed."""
    try:
        find_triton()
        envoy_binary()
    except ExtraMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
async def tritons(demo_extra: None) -> AsyncIterator[Tritons]:  # noqa: ARG001 - skips first
    """Run three replicas for the session: r1 and r2 with version 1, canary r3 with version 2."""
    async with AsyncExitStack() as exit_:
        for again in (True, False):
            started = Tritons(3, env=model_environment())
            try:
                running = await exit_.enter_async_context(started)
                break
            except CrashError as error:
                # Triton aborts itself where a model's process does not run for about a second
                # while it loads, as on a busy machine (triton-inference-server/server#5949).
                if not again or "lock_exception" not in str(error):
                    raise
        yield running


@pytest.fixture(scope="session")
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """Return one HTTP client for the session."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.fixture
async def new_stack(tritons: Tritons) -> AsyncIterator[StackFactory]:
    """Start stacks with the options of ``LocalStack``; all stop when the test ends."""
    async with _factory(tritons) as start:
        yield start


@pytest.fixture(scope="module")
async def new_module_stack(tritons: Tritons) -> AsyncIterator[StackFactory]:
    """Start stacks like ``new_stack``, for all tests of the module."""
    async with _factory(tritons) as start:
        yield start


@pytest.fixture(scope="session")
async def shared(tritons: Tritons, http: aiohttp.ClientSession) -> AsyncIterator[SharedStack]:
    """Run one stack with a gateway for all tests of a worker that leave it as they find it."""
    async with _factory(tritons) as start:
        made = SharedStack(await start(gateway=True), http)
        await made.remember()
        yield made


@pytest.fixture(scope="module")
async def stack(shared: SharedStack) -> LocalStack:
    """Return the shared stack."""
    await shared.usable()
    return shared.stack


@pytest.fixture(scope="module")
async def lend(shared: SharedStack) -> AsyncIterator[Callable[..., Awaitable[LocalStack]]]:
    """Lend the shared stack with changes of its fleet, until the module's tests have ended."""
    async with AsyncExitStack() as exit_:

        async def changed(change: FleetChange) -> LocalStack:
            return await exit_.enter_async_context(shared.having(change))

        yield changed


@pytest.fixture
async def _left_as_found(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail a test of the shared stack that leaves something behind in it."""
    yield
    if "shared" in request.fixturenames:
        left = await request.getfixturevalue("shared").left()
        assert not left, left


class _factory:  # noqa: N801 - used as a function
    def __init__(self, tritons: Tritons) -> None:
        self._tritons = tritons
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> StackFactory:
        return self._start

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def _start(self, **options: Any) -> LocalStack:
        if "replicas" not in options:
            options.setdefault("tritons", self._tritons)
        # Tests of the other transport set it in their module.
        options.setdefault("transport", "grpc")
        options["fleet"] = partial(patient, change=options.get("fleet"))
        return await self._exit.enter_async_context(LocalStack(**options))
