"""Answers to the control server's questions about requests."""

from __future__ import annotations

from typing import Any

import grpc
import orjson
import pytest

from ext_proc.control.inquiries import MAX_ANSWER_BYTES, InquiryAnswerer, fitting
from ext_proc.exchange import Refuse
from ext_proc.observability.records import RequestRecords
from tidegate_api.fleet.v1 import report_pb2


class Call:
    """A stream on which some questions come."""

    def __init__(self, *requests: str) -> None:
        self.questions: list[Any] = [
            report_pb2.Inquiry(number=number, request=each)
            for number, each in enumerate(requests, 1)
        ]
        self.written: list[report_pb2.InquiryAnswer] = []
        self.cancelled = False

    async def write(self, answer: report_pb2.InquiryAnswer) -> None:
        """Take an answer."""
        self.written.append(answer)

    async def read(self) -> Any:
        """Return the next question."""
        return self.questions.pop(0) if self.questions else grpc.aio.EOF

    def cancel(self) -> None:
        """End the stream."""
        self.cancelled = True


async def test_each_question_is_answered_once() -> None:
    """The first message says who answers; an unknown request has no records."""
    records = RequestRecords()
    records.refused(Refuse(429, None, "saturated", b"busy"), "llm", {"x-request-id": "a"}, 1.0)
    call = Call("a", "b")
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        answerer = InquiryAnswerer(
            channel, "p1", records, lambda: 0.5, clock=lambda: 3.0, call=lambda: call
        )
        await answerer.answer()
    assert [(each.picker_id, each.number) for each in call.written] == [
        ("p1", 0),
        ("p1", 1),
        ("p1", 2),
    ]
    (found,) = call.written[1].records_json
    assert orjson.loads(found)["refused"] == "saturated"
    assert not call.written[2].records_json
    assert call.cancelled


@pytest.mark.parametrize(("size", "fits"), [(10, 3), (MAX_ANSWER_BYTES - 100, 1)])
def test_an_answer_is_bounded(size: int, fits: int) -> None:
    """What does not fit is left out, the oldest first."""
    assert len(list(fitting([{"a": "x" * size}] * 3))) == fits
