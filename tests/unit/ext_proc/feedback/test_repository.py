"""States in a repository index."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.feedback.repository import MAX_TEXT, IndexUnreadableError, unavailable


def index(*rows):
    """Write an index as Triton does; a row is name, version, state, reason."""
    fields = ("name", "version", "state", "reason")
    return orjson.dumps([dict(zip(fields, row, strict=False)) for row in rows])


@pytest.mark.parametrize(
    ("rows", "version", "why"),
    [
        ([("m", "1", "READY", "")], None, None),
        ([("m", "1", "READY", "")], "1", None),
        ([("m", "1", "READY", "")], "2", "m: not loaded"),
        ([("m", "1", "UNAVAILABLE", "unloaded"), ("m", "2", "READY", "")], None, None),
        ([("m", "1", "UNAVAILABLE", "unloaded")], None, "m: UNAVAILABLE (unloaded)"),
        ([("m", "1", "LOADING", "")], None, "m: LOADING"),
        ([("m",)], None, "m: not loaded"),
        ([("other", "1", "UNAVAILABLE", "x")], None, None),
    ],
)
def test_a_model_that_is_listed_must_be_ready(rows, version, why):
    """The requested version must be READY, or any; a model that is not listed is not judged."""
    assert unavailable(index(*rows), {"m"}, version) == why


def test_the_reason_is_bounded():
    """A failed load's reason may be a stack trace."""
    data = index(("m", "1", "UNAVAILABLE", "x" * 5000))
    assert len(unavailable(data, {"m"}, None)) == MAX_TEXT


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers(-10, 10) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["name", "version", "state", "reason"]), inner, max_size=4
            )
        ),
        max_leaves=10,
    ).map(orjson.dumps)
)
def test_whatever_comes_is_read_or_refused(data):
    """Only the documented error is raised."""
    try:
        why = unavailable(data, {"m", "a"}, "1")
    except IndexUnreadableError:
        return
    assert why is None or isinstance(why, str)
