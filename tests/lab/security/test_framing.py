"""One in, one out: what a client sends reaches one replica once, byte for byte, however framed.

``support/framing/law.py`` states the law. ``TIDEGATE_FRAMING_CASES`` makes more cases,
``TIDEGATE_FRAMING_SEED`` others; ``-rP`` shows the figures.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.framing import planted_picker
from support.framing.cases import BUFFER_BYTES, Case
from support.framing.replicas import Http1, Http2
from support.framing.run import Run
from support.framing.stack import FramingStack
from xds_server.resources.routes import forwarding

CASES = int(os.environ.get("TIDEGATE_FRAMING_CASES", "400"))
SEED = int(os.environ.get("TIDEGATE_FRAMING_SEED", "1"))
FRONTS = ("http/1.0", *("http/1.1",) * 3, *("h2",) * 4, "h3")
PLANTED = 2000
"""Cases in which a planted fault must be found, at most."""

pytestmark = [pytest.mark.timeout(240 + CASES // 20), pytest.mark.usefixtures("demo_extra")]


@pytest.fixture(scope="module")
async def stack(tmp_path_factory) -> AsyncIterator[FramingStack]:
    """Run one stack for the module; nothing may come on a connection until it ends."""
    async with FramingStack(tmp_path_factory.mktemp("certificates")) as started:
        yield started
    assert started.book.violations == []


@contextmanager
def running(stack: FramingStack, *fronts: str, seed: int = SEED) -> Iterator[Run]:
    """Yield a run whose violations are the test's own."""
    run = Run(stack.listener, stack.http3, stack.book, seed, fronts or FRONTS)
    try:
        yield run
    finally:
        run.stop()
        stack.book.forget()


async def test_one_in_one_out(stack):
    """Over all framings, modes, sizes and failures of replicas."""
    with running(stack) as run:
        await run.go(CASES)
        print(f"seed {SEED}:", dict(sorted(stack.book.count.items())))  # noqa: T201 - for `-rP`
        if stack.book.violations:
            pytest.fail(await run.explain())


async def test_a_request_whose_stream_is_reset_was_read(stack):
    """Over gRPC too only one further replica reads a request that its replica broke off.

    The frame that resets a stream is bytes from the replica, but no answer.
    """
    with running(stack) as run:
        for plan in (("close-head",), ("close-end",), ("refuse",)):
            case = Case(1, "h2", "peek", "grpc", plan=plan)
            assert await run.fails([case]) == []
            assert await run.fails([case.but(form="stream", mode="none")]) == []


async def test_a_chunked_body_whose_end_envoy_loses_is_refused(stack):
    """It just exceeds Envoy's buffer and comes after the picker asked for it: 411, not silence."""
    with running(stack) as run:
        case = Case(1, "http/1.1", "peek", framing="chunked", size=BUFFER_BYTES + 4000, slow=(1,))
        assert await run.fails([case]) == []


async def test_an_end_in_a_frame_of_its_own_is_not_lost(stack):
    """Many clients end bodies of unknown length so; Envoy keeps such an end, however late."""
    with running(stack) as run:
        for size in (BUFFER_BYTES, BUFFER_BYTES + 4000, 2 * BUFFER_BYTES):
            case = Case(1, "h2", "peek", framing="no-length", dress="empty-end", size=size)
            assert await run.fails([case]) == []
            assert await run.fails([case.but(slow=(1, 2))]) == []


# --- planted faults -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fronts"), [(Http1, ("http/1.1",)), (Http2, ("h2",))], ids=["http/1.1", "h2"]
)
async def test_a_byte_between_requests_is_found(stack, monkeypatch, kind, fronts):
    """What a replica gets beside a request breaks the law, whatever it is.

    The last byte of a connection of HTTP/1.1 is beside nothing, so there it comes more than once.
    """
    came, whole = [0], kind.data_received
    planted = range(15, 91, 15) if kind is Http1 else (30,)

    def one_more(self, data: bytes) -> None:
        came[0] += 1
        whole(self, data + b"\0" if came[0] in planted else data)

    monkeypatch.setattr(kind, "data_received", one_more)
    with running(stack, *fronts) as run:
        run.hang_s = 3.0
        await run.go(PLANTED)
        assert stack.book.violations
    for replica in stack.replicas:
        replica.break_off()


async def test_a_doubled_body_is_found(stack, monkeypatch):
    """Without the gate on retries: after trailers, and where the pick is in another pool."""
    monkeypatch.setattr(forwarding, "repeat_known_ends", lambda _: None)
    await stack.apply(stack.first_fleet(idle="301s"))
    with running(stack, "h2") as run:
        run.hang_s = 3.0
        await run.go(PLANTED)
        assert stack.book.violations
        trailed = Case(1, "h2", "duplex", "stream", framing="trailers", slow=(2,))
        moved = Case(1, "h2", "full", "grpc", size=90_000, named=False)
        for case in (trailed, moved):
            assert "is not the client's" in "".join(await run.fails([case]))
        monkeypatch.undo()
        await stack.apply(stack.first_fleet())
        run.hang_s = 90.0  # nothing is planted any more
        for case in (trailed, moved):
            assert await run.fails([case]) == []


async def test_a_wrong_picker_is_found(stack):
    """One that gives chunks back twice, and one that lets sequences be read again.

    The last test: it leaves that picker.
    """
    await stack.replace_picker(Path(planted_picker.__file__))
    for fronts, what in ((("h2",), "is not the client's"), (("http/1.1",), "of 0: ")):
        with running(stack, *fronts) as run:
            run.hang_s = 3.0
            found = stack.book.violations
            for _ in range(3):  # what comes before Envoy asks this picker fills the list
                found.clear()
                await run.go(PLANTED, until=what)
                if any(what in each for each in found):
                    break
            assert [each for each in found if what in each], "\n".join([what, *found])
