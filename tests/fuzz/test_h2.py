"""Peers of the server over libnghttp2: the stored corpus, and Hypothesis."""

from __future__ import annotations

from fuzz.corpus import inputs
from fuzz.h2 import one_connection
from hypothesis import given, settings
from hypothesis import strategies as st

CASES = inputs("h2")


def test_the_corpus():
    """Each stored connection keeps every promise."""
    assert len(CASES) > 10
    for case in CASES:
        try:
            one_connection(case.data)
        except Exception as error:
            raise AssertionError(case.name) from error


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes(data):
    """Nothing is raised, and no handler is left."""
    one_connection(data)


@given(st.sampled_from(CASES), st.data())
@settings(deadline=None)
def test_mutated_connections(case, data):
    """Stored connections with changed bytes."""
    sent = bytearray(case.data)
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    one_connection(bytes(sent))
