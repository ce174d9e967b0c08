"""Whether a reply was handed to gRPC where its call is cancelled meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from ext_proc.server.service import _hand_over


class Handed:
    """A stream that counts how often its replies were handed over."""

    def __init__(self):
        self.times = 0

    def handed_over(self):
        """Count."""
        self.times += 1


class Context:
    """A call whose writes are done when the test says so."""

    def __init__(self):
        self.operations = []

    async def write(self, reply):
        """Wait for the operation, as gRPC's write does."""
        assert isinstance(reply, bytes)
        self.operations.append(asyncio.get_running_loop().create_future())
        await self.operations[-1]


async def begun(replies):
    """Return call, stream and task of a handler that waits in its first write."""
    context, stream = Context(), Handed()
    task = asyncio.ensure_future(_hand_over(context, stream, replies))
    await asyncio.sleep(0)
    return context, stream, task


async def test_a_reply_that_was_taken_before_the_cancellation_was_handed_over():
    """The answer may be over before the handler runs again: that is no loss."""
    context, stream, task = await begun((b"pick",))
    context.operations[0].set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.times == 1


async def test_a_cancelled_write_was_not_handed_over():
    """What the transport had not taken may be lost."""
    _, stream, task = await begun((b"pick",))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.times == 0


async def test_a_write_that_failed_before_the_cancellation_was_not_handed_over():
    """The transport says itself that the call is gone."""
    context, stream, task = await begun((b"pick",))
    context.operations[0].set_exception(ConnectionError())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.times == 0


async def test_the_first_of_two_replies_is_not_all():
    """The pick may be in the second one."""
    context, stream, task = await begun((b"head", b"body"))
    context.operations[0].set_result(None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.times == 0


async def test_replies_that_were_written_were_handed_over():
    """Without a cancellation, once for all of them."""
    context, stream, task = await begun((b"head", b"body"))
    context.operations[0].set_result(None)
    while len(context.operations) < 2:  # noqa: ASYNC110 - no event to await
        await asyncio.sleep(0)
    context.operations[1].set_result(None)
    await task
    assert stream.times == 1
