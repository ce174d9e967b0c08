"""Adapters behind a model's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.reading import served_by, split_adapter
from ext_proc.routing.values.pool import Pool
from ext_proc.routing.values.request import NAMES_ADAPTER, Features, Form

MODELS = {"llama", "meta/llama", "meta", "with:colon"}


@pytest.mark.parametrize(
    ("whole", "model", "adapter"),
    [
        ("llama", "llama", None),
        ("llama:sql", "llama", "sql"),
        ("llama::sql", "llama", "sql"),
        ("meta/llama#sql", "meta/llama", "sql"),
        ("meta/other", "meta", "other"),
        ("with:colon", "with:colon", None),
        ("with:colon@a:b", "with:colon", "a:b"),
        ("llama:", "llama:", None),
        ("llama-3", "llama-3", None),
        ("none:sql", "none:sql", None),
    ],
)
def test_split(whole, model, adapter):
    """The longest served name is the model; the text after a separator is the adapter."""
    features = split_adapter(Features(Form.OPENAI, model=whole), MODELS)
    assert (features.model, features.adapter) == (model, adapter)


@pytest.mark.parametrize("form", sorted(Form))
def test_only_a_name_in_a_body_may_have_an_adapter(form):
    """Engines serve adapters under names of their own in these forms."""
    found = split_adapter(Features(form, model="llama:sql"), MODELS)
    split = ("llama", "sql") if form in NAMES_ADAPTER else ("llama:sql", None)
    assert (found.model, found.adapter) == split


def test_unknown_model():
    """Without a model there is nothing to split."""
    features = Features(Form.OPENAI)
    assert split_adapter(features, MODELS) is features


def test_served_by():
    """A model of any pool is served."""
    pools = {name: Pool(name, frozenset({name})) for name in ("a", "b")}
    assert "b" in served_by(pools)
    assert "c" not in served_by(pools)


@given(st.text(alphabet="a:/#", max_size=20))
def test_a_split_name_is_a_prefix(whole):
    """Whatever the name, its model is the beginning and its adapter the end of it."""
    features = split_adapter(Features(Form.OPENAI, model=whole), {"a", "a:a"})
    assert whole.startswith(features.model)
    assert whole.endswith(features.adapter or "")
