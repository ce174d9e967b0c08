"""Questions to pickers about single requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import grpc
import pytest

from support.time import Clock
from tidegate_api.fleet.v1 import report_pb2
from xds_server.applications.traffic.inquiry import TooManyInquiries
from xds_server.server import inquiries
from xds_server.server.inquiries import MAX_RECORDS, Inquiries

Answer = report_pb2.InquiryAnswer


class AbortedError(Exception):
    """The stream was ended with a status."""


class Picker:
    """A picker's stream; a context of gRPC and an iterator of its answers."""

    def __init__(self, records: tuple[str, ...] | None = ("{}",), name: str = "p1") -> None:
        self.name = name
        self.records = records
        self.asked: list[str] = []
        self.sent: asyncio.Queue[Answer | None] = asyncio.Queue()
        self.sent.put_nowait(Answer(picker_id=name))

    async def write(self, inquiry: report_pb2.Inquiry) -> None:
        """Answer a question, if this picker answers."""
        self.asked.append(inquiry.request)
        if self.records is not None:
            self.sent.put_nowait(
                Answer(
                    picker_id=self.name,
                    number=inquiry.number,
                    records_json=self.records,
                    since_seconds=3.0,
                )
            )

    async def abort(self, code: grpc.StatusCode, why: str) -> None:
        """End the stream."""
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        raise AbortedError(why)

    async def answers(self) -> Any:
        """Yield the messages until the stream ends."""
        while (answer := await self.sent.get()) is not None:
            yield answer


@contextlib.asynccontextmanager
async def served(*pickers: Picker) -> Any:
    """Serve the streams of pickers."""
    book = Inquiries()
    tasks = [asyncio.ensure_future(book.serve(each.answers(), each)) for each in pickers]
    for _ in range(10):  # steps of the loop, in which the first messages are taken
        await asyncio.sleep(0)
    yield book
    for each in pickers:
        each.sent.put_nowait(None)
    await asyncio.gather(*tasks)


async def test_all_pickers_are_asked() -> None:
    """What each knows is told with its name."""
    one, other = Picker(('{"a": 1}',)), Picker((), "p2")
    async with served(one, other) as book:
        found = await book.ask("r")
    assert [(each.picker, each.records) for each in found.told] == [
        ("p1", ('{"a": 1}',)),
        ("p2", ()),
    ]
    assert (one.asked, other.asked, found.silent) == (["r"], ["r"], ())


async def test_who_does_not_answer_is_named() -> None:
    """Both a picker that hangs and one that keeps no stream; the others' answers count."""
    async with served(Picker(), Picker(None, "p2")) as book:
        found = await book.ask("r", ["p1", "p2", "p3"], within_s=0.05)
    assert [each.picker for each in found.told] == ["p1"]
    assert found.silent == ("p2", "p3")


async def test_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a question is refused, and places are free again when one is over."""
    monkeypatch.setattr(inquiries, "MAX_ASKED", 1)
    async with served(Picker(None)) as book:
        first = asyncio.ensure_future(book.ask("r", within_s=0.05))
        await asyncio.sleep(0)
        with pytest.raises(TooManyInquiries):
            await book.ask("r")
        await first
        assert (await book.ask("r", within_s=0.01)).silent == ("p1",)


async def test_a_picker_that_leaves_is_silent() -> None:
    """Its question ends with its stream."""
    picker = Picker(None)
    book = Inquiries()
    stream = asyncio.ensure_future(book.serve(picker.answers(), picker))
    await Clock().until(lambda: book._streams)
    asked = asyncio.ensure_future(book.ask("r"))
    await asyncio.sleep(0)
    picker.sent.put_nowait(None)
    await stream
    assert (await asked).silent == ("p1",)
    assert (await book.ask("r")).silent == ()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([Answer()], "picker_id"),
        ([Answer(picker_id="a\n")], "picker_id"),
        ([Answer(picker_id="a" * 257)], "picker_id"),
        ([Answer(picker_id="a", number=1)], "answers nothing"),
        ([Answer(picker_id="a"), Answer(picker_id="b", number=1)], "picker_id"),
        ([Answer(picker_id="a"), Answer(picker_id="a", records_json=["[]"])], "JSON object"),
        ([Answer(picker_id="a"), Answer(picker_id="a", records_json=["{"])], "JSON object"),
        ([Answer(picker_id="a"), Answer(picker_id="a", records_json=["[" * 10**5])], "JSON object"),
        (
            [Answer(picker_id="a"), Answer(picker_id="a", records_json=["{}"] * (MAX_RECORDS + 1))],
            "more than",
        ),
        (
            [
                Answer(picker_id="a"),
                Answer(picker_id="a", records_json=[json.dumps({"a": "x" * 600_000})]),
            ],
            "more than",
        ),
        ([Answer(picker_id="a"), Answer(picker_id="a", since_seconds=float("nan"))], "finite"),
    ],
)
async def test_a_hostile_stream_is_ended(messages: list[Answer], why: str) -> None:
    """Nothing of it is kept."""
    picker, book = Picker(), Inquiries()
    picker.sent = asyncio.Queue()
    for each in messages:
        picker.sent.put_nowait(each)
    with pytest.raises(AbortedError, match=why):
        await book.serve(picker.answers(), picker)
    assert (await book.ask("r")).told == ()


async def test_an_answer_to_no_question_is_ignored() -> None:
    """A late answer changes nothing."""
    picker = Picker()
    async with served(picker) as book:
        picker.sent.put_nowait(Answer(picker_id="p1", number=99))
        assert [each.picker for each in (await book.ask("r")).told] == ["p1"]
