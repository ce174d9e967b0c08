"""Lists of models, as replicas tell them."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.feedback.placement.index import (
    IndexUnreadableError,
    read_grpc_index,
    read_index,
    read_models,
)
from ext_proc.routing.values.listing import (
    MAX_REASON,
    MAX_ROWS,
    OWN_MODEL,
    Listing,
    PlacementState,
    Row,
)

READY, LOADING, UNAVAILABLE = PlacementState


def index(*rows):
    """Write an index as Triton does; a row is name, version, state, reason."""
    fields = ("name", "version", "state", "reason")
    return orjson.dumps([dict(zip(fields, row, strict=False)) for row in rows])


@pytest.mark.parametrize(
    ("row", "read"),
    [
        (("m", "1", "READY", ""), Row("m", "1", READY)),
        (("m", "1", "READY"), Row("m", "1", READY)),
        (("m", "1", "LOADING", ""), Row("m", "1", LOADING)),
        (("m", "1", "UNLOADING", ""), Row("m", "1", UNAVAILABLE, "unloading")),
        (("m", "1", "UNAVAILABLE", "unloaded"), Row("m", "1", UNAVAILABLE, "unloaded")),
        (("m", "1", "UNAVAILABLE", ""), Row("m", "1", UNAVAILABLE)),
        (("m",), Row("m", "", UNAVAILABLE, "not loaded")),
        (("m", "1", "x" * 9, ""), Row("m", "1", UNAVAILABLE)),
    ],
)
def test_states_of_tritons_index(row, read):
    """What is neither READY nor LOADING gets no requests."""
    assert read_index(index(row), 2.0) == Listing(2.0, (read,))


def test_the_reason_is_bounded():
    """A failed load's reason may be a stack trace."""
    (row,) = read_index(index(("m", "1", "UNAVAILABLE", "x" * 5000)), 0.0).rows
    assert len(row.reason) == MAX_REASON


def test_a_row_that_cannot_be_read_makes_the_rest_unknown():
    """The model that it is about is not known to be absent."""
    data = orjson.dumps([{"name": "m", "version": "1", "state": "READY"}, {"name": 7}, "x"])
    assert read_index(data, 0.0) == Listing(0.0, (Row("m", "1", READY),), whole=False)
    assert not read_index(index(("x" * 300, "1", "READY")), 0.0).whole


def test_a_longer_list_is_cut():
    """The bound is that of the table."""
    found = read_index(index(*[(f"m{n}", "1", "READY") for n in range(MAX_ROWS + 9)]), 0.0)
    assert (len(found.rows), found.whole) == (MAX_ROWS, False)


def test_models_of_an_engine_are_ready():
    """They have no versions; adapters are listed like models."""
    data = b'{"data":[{"id":"llama","root":"x"},{"id":"lora-a","root":"/a","parent":"llama"}]}'
    rows = (Row("llama", "", READY, OWN_MODEL), Row("lora-a", "", READY))
    assert read_models(data, 1.0) == Listing(1.0, rows)


def test_a_server_of_several_models_owns_none():
    """It may unload any of them; two names of one model are one."""
    several = b'{"data":[{"id":"a","root":"x"},{"id":"b"}]}'
    assert {row.reason for row in read_models(several, 1.0).rows} == {""}
    names = b'{"data":[{"id":"a","root":"x"},{"id":"b","root":"x"}]}'
    assert {row.reason for row in read_models(names, 1.0).rows} == {OWN_MODEL}


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"<html>", b'{"data":7}', b'{"data":null}'])
def test_what_is_no_list_of_models_is_refused(data):
    """An engine's error page says nothing."""
    with pytest.raises(IndexUnreadableError):
        read_models(data, 0.0)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers(-10, 10) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["name", "version", "state", "reason", "data", "id"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=10,
    ).map(orjson.dumps)
)
def test_whatever_comes_is_read_or_refused(data):
    """Only the documented error is raised."""
    for read in (read_index, read_models, read_grpc_index):
        try:
            found = read(data, 0.0)
        except IndexUnreadableError:
            continue
        assert isinstance(found, Listing)


def field(number, text):
    """Encode a short length-delimited field."""
    return bytes([number << 3 | 2, len(text)]) + text


def test_the_grpc_index_is_the_same():
    """Unknown fields are skipped; rows that are cut off make the message unreadable."""
    one = field(1, b"m") + field(2, b"1") + field(3, b"READY") + b"\x28\x07\x31" + bytes(8)
    two = field(1, b"n")
    data = field(1, one) + field(1, two) + field(9, b"later")
    rows = (Row("m", "1", READY), Row("n", "", UNAVAILABLE, "not loaded"))
    assert read_grpc_index(data, 0.0) == Listing(0.0, rows)
    for cut in (data[:-1], data[: len(field(1, one)) - 3], b"\xff" * 12, b"\x0b"):
        with pytest.raises(IndexUnreadableError):
            read_grpc_index(cut, 0.0)
