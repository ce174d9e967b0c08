"""The pickers' reports: replacement, ownership, bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tidegate_api.fleet.v1.report_pb2 import EndpointLoad, Finding, PickerReport
from xds_server.fleet.findings import Place
from xds_server.protocol.publication import PickerLoad
from xds_server.server import reports
from xds_server.server.reports import MAX_CONDITIONS, PickerReports, _Latest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Refused(Exception):  # noqa: N818 - stands for gRPC's own AbortError
    """Raised by ``context.abort``."""


class Context:
    """A gRPC context that only aborts."""

    async def abort(self, _code: Any, text: str) -> None:
        raise Refused(text)


def report(picker: str, **loads: int) -> PickerReport:
    """Build a report."""
    endpoints = [EndpointLoad(id=name, in_flight=count) for name, count in loads.items()]
    return PickerReport(picker_id=picker, endpoints=endpoints)


async def test_each_report_replaces_the_one_before() -> None:
    """An absent endpoint has no requests in flight; zeros are not stored."""
    seen = []
    book = PickerReports(lambda: seen.append(book.in_flight()))

    async def stream() -> AsyncIterator[PickerReport]:
        yield report("p", a=1, b=2)
        yield report("", b=3, c=0)

    await book.Report(stream(), Context())
    assert seen == [{"a": 1, "b": 2}, {"b": 3}, {}]
    assert not book.loads()


async def test_the_newer_stream_of_a_picker_owns_its_counts() -> None:
    """A reconnected picker counts once, and the end of its old stream removes nothing."""
    book = PickerReports(lambda: None)
    states = []

    async def newer() -> AsyncIterator[PickerReport]:
        yield report("p", a=5)

    async def older() -> AsyncIterator[PickerReport]:
        yield report("p", a=1)
        inner = newer()
        book._latest["p"] = _Latest(99, PickerLoad({"a": 5}), {})
        yield report("p", a=2)
        states.append(book.in_flight())
        await inner.aclose()

    await book.Report(older(), Context())
    assert states == [{"a": 5}]
    assert book.in_flight() == {"a": 5}


@pytest.mark.parametrize(
    ("bound", "value", "text"),
    [
        ("MAX_ID_CHARS", 0, "picker_id"),
        ("MAX_PICKERS", 0, "pickers are connected already"),
        ("MAX_ENDPOINTS", 1, "endpoints in one report"),
    ],
)
async def test_reports_are_bounded(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int, text: str
) -> None:
    """A report above a bound ends its stream; its counts are removed."""
    monkeypatch.setattr(reports, bound, value)
    book = PickerReports(lambda: None)

    async def stream() -> AsyncIterator[PickerReport]:
        yield report("p", a=1, b=2)

    with pytest.raises(Refused, match=text):
        await book.Report(stream(), Context())
    assert book.in_flight() == {}


async def test_the_members_that_a_picker_misses_are_known_until_it_goes() -> None:
    """They are part of the verdict; more than may be in a group end the stream."""
    book = PickerReports(lambda: None)
    seen = []

    async def stream() -> AsyncIterator[PickerReport]:
        for missing in (["10.0.0.2:1: gone"], ["x" * 999], ["x"] * 65):
            told = report("p", a=1)
            told.missing_members.extend(missing)
            yield told
            seen.append(book.missing())

    with pytest.raises(Refused, match="more than 64 missing members"):
        await book.Report(stream(), Context())
    assert seen == [{"p": ("10.0.0.2:1: gone",)}, {"p": ("x" * 256,)}]
    assert book.missing() == {}


async def test_a_report_must_name_its_picker() -> None:
    """Without a name the counts could be neither replaced nor removed."""

    async def stream() -> AsyncIterator[PickerReport]:
        yield report("", a=1)

    with pytest.raises(Refused, match="picker_id"):
        await PickerReports(lambda: None).Report(stream(), Context())


def finding(endpoint: str, *conditions: str) -> Finding:
    """Build a finding in the pool llm."""
    return Finding(pool="llm", id=endpoint, incarnation=2, conditions=conditions)


async def test_findings_end_with_their_stream() -> None:
    """Only changed findings are signalled; a picker's findings end with its stream."""
    heard: list[Any] = []
    book = PickerReports(lambda: None, lambda: heard.append(book.findings()))

    async def stream() -> AsyncIterator[PickerReport]:
        yield PickerReport(picker_id="p")
        yield PickerReport(picker_id="p", findings=[finding("r1", "ejected", "frozen")])
        yield PickerReport(
            picker_id="p",
            findings=[finding("r1", "ejected", "frozen")],
            endpoints=[EndpointLoad(id="r1", in_flight=3)],
        )

    await book.Report(stream(), Context())
    assert heard == [[{Place("llm", "r1", 2): ("ejected", "frozen")}], []]


async def test_findings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many of them, or of their conditions, or a long name, end the stream."""
    monkeypatch.setattr(reports, "MAX_FINDINGS", 2)
    many = [finding(f"r{number}", "ejected") for number in range(3)]
    names = [finding("r1", *(["x"] * (MAX_CONDITIONS + 1)))]
    for findings in (many, names, [finding("r1", "x" * 65)]):

        async def stream(found: Any = findings) -> AsyncIterator[PickerReport]:
            yield PickerReport(picker_id="p", findings=found)

        book = PickerReports(lambda: None)
        with pytest.raises(Refused, match="more than"):
            await book.Report(stream(), Context())
        assert not book.loads()


async def test_passes_are_kept_per_picker_while_it_reports() -> None:
    """Pickers without any are not listed."""
    book = PickerReports(lambda: None)
    heard: list[Any] = []

    async def stream() -> AsyncIterator[PickerReport]:
        yield PickerReport(picker_id="p")
        heard.append(book.passes())
        yield PickerReport(picker_id="p", passes={"no-pool": 3})
        heard.append(book.passes())

    await book.Report(stream(), Context())
    assert heard == [{}, {"p": {"no-pool": 3}}]
    assert book.passes() == {}


@pytest.mark.parametrize("passes", [{f"r{number}": 1 for number in range(33)}, {"x" * 65: 1}])
async def test_passes_are_bounded(passes: dict[str, int]) -> None:
    """Too many reasons, or a long one, end the stream."""

    async def stream() -> AsyncIterator[PickerReport]:
        yield PickerReport(picker_id="p", passes=passes)

    with pytest.raises(Refused, match="more than"):
        await PickerReports(lambda: None).Report(stream(), Context())


async def test_workers_of_one_picker_count_as_one() -> None:
    """Workers share their findings: two of them are no quorum; another picker counts separately."""
    book = PickerReports(lambda: None)
    seen: list[list[str]] = []
    pickers = [("p.w0", "p", "r1"), ("p.w1", "p", "r2"), ("q", "", "r1")]

    async def stream(number: int) -> AsyncIterator[PickerReport]:
        name, group, sick = pickers[number]
        yield PickerReport(picker_id=name, group=group, findings=[finding(sick, "ejected")])
        if number + 1 < len(pickers):
            await book.Report(stream(number + 1), Context())
        else:
            seen.extend(sorted(place.endpoint for place in found) for found in book.findings())

    await book.Report(stream(0), Context())
    assert seen == [["r1", "r2"], ["r1"]]
