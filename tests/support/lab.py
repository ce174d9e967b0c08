"""The fixtures of ``tests/lab``, ``tests/process`` and ``tests/soak``, as a plugin of pytest.

Each test worker has one set of Triton replicas for all three folders, and stacks over them. A test
that kills or restarts a shared Triton must leave it ready again (``Tritons.restart``).
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import pytest

from support import started
from support.preforked import Prefork, forking, preforked
from support.shared_stack import LentStack, SharedStack, patient
from support.traffic import STREAM_TOKENS
from tidegate.stack.assets import ExtraMissingError
from tidegate.stack.envoy import envoy_binary
from tidegate.stack.local import LocalStack
from tidegate.stack.tritons.fleet import Tritons
from tidegate.stack.tritons.replica import find_triton

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


TRITONS = pytest.StashKey[Tritons]()
"""The worker's Tritons, once they run."""
PREFORK = pytest.StashKey[Prefork]()
"""What forks services for all workers of a run."""


def pytest_configure(config: pytest.Config) -> None:
    """Count what is started, where that is wanted."""
    if os.environ.get("TIDEGATE_STARTED") == "1":
        started.count()
        config.pluginmanager.register(started, "started")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where its services are forked."""
    if not forking():
        return
    stash = node.config.stash
    if PREFORK not in stash:
        stash[PREFORK] = Prefork().__enter__()
    node.workerinput["prefork"] = stash[PREFORK].path


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what forks services."""
    if PREFORK in config.stash:
        config.stash[PREFORK].__exit__()


TIME_SCALE = 0.1
"""Time factor of the language model: ten times faster than the default."""


def model_environment() -> dict[str, str]:
    """Return the settings of the language model, which may generate ``STREAM_TOKENS`` tokens."""
    made = {"TOY_LLM_TIME_SCALE": str(TIME_SCALE)}
    if STREAM_TOKENS > 4096:  # its default; a block has 16 tokens
        made["TOY_LLM_MAX_TOKENS"] = str(STREAM_TOKENS)
        made["TOY_LLM_CACHE_BLOCKS"] = str(1024 + STREAM_TOKENS // 16)
    return made


class StackFactory(Protocol):
    """Starts a stack over the session's replicas, or over replicas given by keyword."""

    async def __call__(self, **options: Any) -> LocalStack:
        """Start a stack; the fixture stops it."""


@pytest.fixture(scope="session")
def forked_services(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start the services without their imports, which would take a third of the time."""
    with preforked(getattr(request.config, "workerinput", {}).get("prefork")):
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
async def tritons(
    demo_extra: None,  # noqa: ARG001 - skips first
    request: pytest.FixtureRequest,
) -> AsyncIterator[Tritons]:
    """Run three replicas for the session: r1 and r2 with version 1, canary r3 with version 2."""
    async with Tritons(3, env=model_environment()) as running:
        request.config.stash[TRITONS] = running
        yield running
        del request.config.stash[TRITONS]


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
        made = SharedStack(await start(gateway=True, kind=LentStack), http)
        await made.remember()
        yield made


@pytest.fixture(scope="session")
async def empty_stack(demo_extra: None, http: aiohttp.ClientSession) -> AsyncIterator[SharedStack]:  # noqa: ARG001 - skips first
    """Run one stack without replicas, for pools of replicas in the test's process."""
    async with SharedStack.without_replicas(http) as made:
        yield made


@pytest.fixture(scope="module")
async def stack(shared: SharedStack) -> LocalStack:
    """Return the shared stack."""
    await shared.usable()
    return shared.stack


@pytest.fixture(scope="module")
async def lend(shared: SharedStack) -> AsyncIterator[StackFactory]:
    """Lend the shared stack with another fleet, until the module's tests have ended.

    It takes what ``SharedStack.having`` takes, as ``new_module_stack`` would.
    """
    async with AsyncExitStack() as exit_:

        async def lent(**options: Any) -> LocalStack:
            return await exit_.enter_async_context(shared.having(**options))

        yield lent


@pytest.fixture
async def lend_once(shared: SharedStack) -> AsyncIterator[StackFactory]:
    """Lend the shared stack like ``lend``, until the test has ended."""
    async with AsyncExitStack() as exit_:

        async def lent(**options: Any) -> LocalStack:
            return await exit_.enter_async_context(shared.having(**options))

        yield lent


async def revive(tritons: Tritons | None) -> list[str]:
    """Start shared Tritons again that have ended; return how each one ended.

    Without this a Triton that one test kills would fail all that come after.
    """
    ended: list[str] = []
    if tritons is None:
        return ended
    supervisor = tritons.supervisor
    for replica in tritons.replicas:
        if not supervisor.running(replica.name):
            await supervisor._children[replica.name].watch
            crash = supervisor.crash
            ended.append(str(crash) if crash and crash.name == replica.name else replica.name)
            supervisor._crash = None
            supervisor._crashed.clear()
            await tritons.restart(replica.name)
    return ended


@pytest.fixture
async def _left_as_found(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail a test that leaves something behind in a shared stack, or ends a shared Triton."""
    stash = request.config.stash
    if ended := await revive(stash.get(TRITONS, None)):
        print("ended after the test before, and were started again:", *ended)  # noqa: T201
    yield
    ended = await revive(stash.get(TRITONS, None))
    assert not ended, f"shared Tritons ended in this test, and were started again: {ended}"
    for name in {"shared", "empty_stack"} & set(request.fixturenames):
        left = await request.getfixturevalue(name).left()
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
        kind = options.pop("kind", LocalStack)
        return await self._exit.enter_async_context(kind(**options))
