"""Plain values: what they promise beside their fields."""

from __future__ import annotations

import pytest

from ext_proc.exchange import Body, Lost, ReplyBody, ReplyHead, Trailers
from ext_proc.routing.values.request import Features, Form


def test_equal_means_all_fields_of_one_class():
    """Another field, or the same fields of another class, is another value."""
    assert Body(b"a", end_of_stream=True) == Body(b"a", end_of_stream=True)
    assert Body(b"a", end_of_stream=True) != Body(b"a", end_of_stream=False)
    assert ReplyHead() != ReplyBody()
    assert Trailers() == Trailers()
    assert Lost(clean=True) != "lost"


def test_a_changed_one_is_another_one():
    """The first stays as it is; a field that is not there is an error."""
    first = Features(Form.OPENAI, model="m", token_ids=True)
    second = first.changed(model="n")
    assert (first.model, second.model) == ("m", "n")
    assert second == Features(Form.OPENAI, model="n", token_ids=True)
    with pytest.raises(TypeError, match="argument"):  # compiled, it is not named
        first.changed(modle="n")


def test_a_copy_has_every_field():
    """None is forgotten where a field is added."""
    told = {name: name for name in Features.__slots__ if name not in NO_TEXTS}
    first = Features(**{**told, **NO_TEXTS})  # type: ignore[arg-type]  # all of them have values
    assert first.copy() == first
    assert first.copy() is not first


def test_it_is_shown_with_its_fields():
    """In their alphabetical order."""
    shown = repr(Body(b"a", end_of_stream=True))
    assert shown == "Body(chunk=b'a', end_of_stream=True, subset=None)"


def test_it_is_no_key():
    """Equal ones may differ later."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(Lost(clean=True))


NO_TEXTS = {
    "form": Form.OPENAI,
    "max_tokens": 1,
    "priority": 2,
    "prompt": b"prompt",
    "prompt_is_partial": True,
    "sequence_end": True,
    "sequence_start": True,
    "streaming": True,
    "timeout_s": 0.5,
    "token_ids": True,
}
