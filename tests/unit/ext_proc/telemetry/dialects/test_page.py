"""The text format, line by line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ext_proc.telemetry.dialects.page import (
    MAX_SERIES,
    MAX_SERIES_CHARS,
    BadPage,
    ModelVersion,
    parse,
    total,
)

WANTED = frozenset({"a", "b:c"})


def test_only_wanted_series_are_returned():
    """Other families are ignored; a series that names no Triton model has no key."""
    text = (
        "# HELP a about a\n# TYPE a gauge\n"
        'a{version="1",x="y",model="m"} 3\n'
        'a{model="m"} 4\n'
        'ab{model="m",version="1"} 5\n'
        'b:c{model="m\\"n",version="2"} 0\n'
        "broken, but not wanted\n"
    )
    families = parse(text, WANTED)
    assert [(s.key, s.value, s.labels.get("x")) for s in families["a"]] == [
        (ModelVersion("m", "1"), 3, "y"),
        (None, 4, None),
    ]
    assert [s.key for s in families["b:c"]] == [ModelVersion('m"n', "2")]


def test_the_format_is_read_as_prometheus_reads_it():
    """Labels are unescaped, blanks and a last comma accepted, timestamps ignored."""
    text = 'a { x = "1\\n2\\\\" , y="}" ,} 1e3 1700000000000\nb:c\t5\n'
    families = parse(text, WANTED)
    assert [(s.labels, s.value) for s in families["a"]] == [({"x": "1\n2\\", "y": "}"}, 1000)]
    (theirs,) = [
        s for f in text_string_to_metric_families(text) for s in f.samples if s.name == "a"
    ]
    assert (theirs.labels, theirs.value) == (families["a"][0].labels, 1000)


def test_long_series():
    """The bound on a series' text is exact."""
    most = MAX_SERIES_CHARS - len('a{x=""}')
    assert parse(f'a{{x="{"y" * most}"}} 1\n', WANTED)["a"][0].value == 1
    with pytest.raises(BadPage, match="line 1"):
        parse(f'a{{x="{"y" * (most + 1)}"}} 1\n', WANTED)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
def test_unusable_values_are_unknown(value):
    """A value that is neither a level nor a counter is unknown, not 0."""
    (sample,) = parse(f'a{{model="m",version="1"}} {value}\n', WANTED)["a"]
    assert sample.value is None


@pytest.mark.parametrize("text", ["", "\n \n", "# HELP a b\n# TYPE a gauge\n"])
def test_empty_page(text):
    """A page without a sample is a failed scrape: Triton answers like this on wrong paths."""
    with pytest.raises(BadPage, match="no sample"):
        parse(text, WANTED)


@pytest.mark.parametrize("text", ["<html>\n", "\n{}", '{"error": "no"}', "404: Not Found"])
def test_other_pages(text):
    """Text that is not a page of metrics is refused with its line."""
    with pytest.raises(BadPage, match=r"line \d: not a Prometheus sample"):
        parse(text, WANTED)


@pytest.mark.parametrize(
    "line",
    ['a{model="m",version="1"} x', 'a{model="m} 3', 'a{model="m",version="1"}', "a{model=m} 1"],
)
def test_broken_line_is_named(line):
    """A broken line among the wanted ones refuses the page and is named."""
    good = 'a{model="m",version="1"} 3\n'
    with pytest.raises(BadPage, match="line 3"):
        parse(good + "other 1\n" + line + "\n" + good, WANTED)


def test_series_bound():
    """The bound on series is exact."""
    line = 'a{model="m",version="1"} 3\n'
    assert len(parse(line * MAX_SERIES, WANTED)["a"]) == MAX_SERIES
    with pytest.raises(BadPage, match=f"line {MAX_SERIES + 1}: more than"):
        parse(line * (MAX_SERIES + 1), WANTED)


@pytest.mark.parametrize(
    ("values", "expected"), [([], None), ([None], None), ([1, None], None), ([1, 2.5], 3.5)]
)
def test_total(values, expected):
    """A sum with an unknown part is unknown."""
    assert total(values) == expected


@given(st.text(alphabet='a{}model="version",1 .-e\n#\\'))
def test_only_bad_page_escapes(text):
    """Random text is read or refused."""
    try:
        parse('a{model="m",version="1"} 1\na{' + text, WANTED)
    except BadPage as error:
        assert "line" in str(error)  # noqa: PT017 - either outcome is right
