"""The work of reading a request is bounded, whatever its bytes are; counted, not timed."""

from __future__ import annotations

import gc
import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ext_proc.requests import UnsoundRequest, read_body, read_head
from ext_proc.requests.parsing import shapes
from ext_proc.requests.parsing.budget import MAX_LEVELS, QUIET_BYTES, Levels
from ext_proc.requests.reading import _JSON_READERS
from ext_proc.routing.values.refusal import RefusalKind
from ext_proc.routing.values.request import Form
from support.costly import BODIES, CHAT, GENERATE, GRPC, INFER, PEEKED, framed, infer
from support.tries import tries
from support.work import BOUND, counted, read

REFUSED = (
    "125 KB of lists in 588 bytes of gzip",
    "gzip of 1 MiB of lists",
    "gRPC, fields",
    "gRPC, inputs",
    "lists",
    "objects",
    "cut lists",
    "lists and a cut prompt",
)
"""Bodies of which a replica would read more than a picker."""


@pytest.mark.parametrize("name", BODIES)
def test_the_work_of_a_reading_is_bounded(name, monkeypatch):
    """The costliest body of each kind takes at most so many units, which are about 2 ms."""
    request = BODIES[name]
    with counted(monkeypatch) as work:
        read(request.path, request.headers, request.body, complete=request.complete)
    assert work.units <= BOUND * 1.02


@pytest.mark.parametrize("name", REFUSED)
def test_what_costs_too_much_is_refused_by_name(name):
    """The hard stop has a reason of its own, which callers get."""
    request = BODIES[name]
    error = read(request.path, request.headers, request.body, complete=request.complete)
    assert isinstance(error, UnsoundRequest)
    assert error.kind is RefusalKind.TOO_COMPLEX


_PIECES = (b"[", b"]", b"{", b"}", b",", b":", b'"a"', b'"data"', b'"shape"', b'"text_input"', b"0")
_REPEATED = st.tuples(
    st.lists(st.sampled_from(_PIECES), min_size=1, max_size=8).map(b"".join),
    st.sampled_from((1, 90, 700, 20_000)),
).map(lambda drawn: (drawn[0] * drawn[1])[: PEEKED // 3])
_BYTES = st.tuples(st.binary(min_size=1, max_size=12), st.sampled_from((1, 700, 20_000))).map(
    lambda drawn: (drawn[0] * drawn[1])[: PEEKED // 3]
)
_PATHS = st.sampled_from((INFER, GENERATE, CHAT, "/v1/responses", "/v1/messages", "/v1/score"))


@settings(max_examples=tries(10), deadline=None)
@given(st.data())
def test_no_bytes_cost_more(data):
    """Whatever is repeated however often, in whatever form and coding: the count stays below."""
    if data.draw(st.booleans()):
        message = b"".join(data.draw(st.lists(_BYTES, min_size=1, max_size=3)))
        path, headers, body = GRPC, {}, framed(message)
    else:
        path, headers = data.draw(_PATHS), {}
        parts = data.draw(st.lists(_REPEATED, min_size=1, max_size=3))
        body = infer(b"[" + b"".join(parts) + b"]") if path == INFER else b"".join(parts)
        if data.draw(st.booleans()):
            headers, body = {"content-encoding": "gzip"}, gzip.compress(body, 1)
    complete = data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch, counted(patch) as work:
        read(path, headers, body, complete=complete)
    assert work.units <= BOUND


def test_levels_of_a_request_are_counted_together():
    """Many inputs of a few levels each cost as much as one of many."""
    levels = Levels()
    data = [[1], [1]]
    for _ in range(MAX_LEVELS):
        assert shapes.count_json(data, "INT32", "x", levels) == 2
    with pytest.raises(UnsoundRequest, match="nest too often"):
        shapes.count_json(data, "INT32", "x", levels)
    with pytest.raises(UnsoundRequest, match="nest too often"):
        shapes.flattened(data, levels)


def test_a_long_body_is_read_without_garbage_collection(monkeypatch):
    """A collection would add the whole process to the work; afterwards it is on again."""
    seen = []
    monkeypatch.setitem(
        _JSON_READERS,
        Form.GENERATE,
        lambda features, *_, **__: seen.append(gc.isenabled()) or features,
    )
    for size in (QUIET_BYTES, QUIET_BYTES + 1):
        read_body(read_head("POST", GENERATE, {}), {}, b"x" * size, complete=True)
        assert gc.isenabled()
    assert seen == [True, False]
