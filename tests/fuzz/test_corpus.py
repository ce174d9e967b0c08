"""The corpus, replayed, and random inputs to the same targets."""

from __future__ import annotations

import pytest
from fuzz.corpus import FILE, MAX_INPUTS, inputs
from fuzz.targets import load_report, metrics_page, one_input
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("case", inputs("request"), ids=lambda case: case.name)
def test_request(case):
    """A request of the corpus is read and answered within bounds."""
    one_input(case.data)


@pytest.mark.parametrize("case", inputs("metrics"), ids=lambda case: case.name)
def test_metrics(case):
    """A metrics page of the corpus is read or refused."""
    metrics_page(case.data)


def test_the_corpus_is_bounded():
    """The replay stays short."""
    assert len(FILE.read_text().splitlines()) <= MAX_INPUTS


@given(st.binary(max_size=300))
def test_random_requests(data):
    """Random bytes in random forms are answered within bounds."""
    one_input(data)


@given(st.binary(max_size=300), st.sampled_from([b"", b"JSON ", b"TEXT ", b"BIN "]))
def test_random_load_reports(data, form):
    """Random bytes in response headers are read or refused."""
    load_report(form + data)


@given(st.sampled_from(inputs("request")), st.data())
def test_mutated_requests(case, data):
    """Requests of the corpus with changed bytes are answered within bounds."""
    body = bytearray(case.data)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    one_input(bytes(body))
