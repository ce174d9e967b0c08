"""Wire and exchange against any stream of messages: the stored corpus, and Hypothesis."""

from __future__ import annotations

import pytest
from fuzz.corpus import inputs
from fuzz.wire import PATHS, duplex_is_complete, one_stream
from hypothesis import given
from hypothesis import strategies as st

from support.streams import GRPC_INFER, GRPC_STREAM, frame

MESSAGES = st.sampled_from([frame("toy-llm"), frame("vision", sequence=7), frame("missing")])


def test_the_corpus():
    """Each stored stream keeps every promise."""
    cases = inputs("wire")
    assert len(cases) > 50
    for case in cases:
        try:
            one_stream(case.data)
        except Exception as error:
            raise AssertionError(case.name) from error


@given(st.binary(max_size=600))
def test_any_stream(data):
    """No exception, no unbounded state, and only replies that Envoy accepts."""
    one_stream(data)


@given(
    st.lists(st.one_of(st.binary(max_size=40), MESSAGES), min_size=1, max_size=5),
    st.sampled_from([path for path in PATHS if path]),
    st.booleans(),
)
def test_what_goes_into_duplex_comes_out(chunks, path, unnamed):
    """However a body is split, all of it is forwarded in order, and its end once."""
    duplex_is_complete(chunks, path, unnamed=unnamed)


@pytest.mark.parametrize("path", [GRPC_INFER, GRPC_STREAM])
def test_a_large_body_in_duplex(path):
    """This also holds above the bound of held bytes."""
    message = frame("toy-llm", tensor=300_000)
    pieces = [message[at : at + 16_384] for at in range(0, len(message), 16_384)]
    duplex_is_complete(pieces, path, unnamed=True)
