"""Plain values: equality, copies, repr and hash."""

from __future__ import annotations

import pytest

from ext_proc.exchange import Body, Lost, ReplyBody, ReplyHead, Trailers
from ext_proc.routing.values.request import Features, Form, Truncation


def test_equal_means_all_fields_of_one_class():
    """Values with a different field, or of a different class, are not equal."""
    assert Body(b"a", end_of_stream=True) == Body(b"a", end_of_stream=True)
    assert Body(b"a", end_of_stream=True) != Body(b"a", end_of_stream=False)
    assert ReplyHead() != ReplyBody()
    assert Trailers() == Trailers()
    assert Lost(clean=True) != "lost"


def test_a_changed_one_is_another_one():
    """The original is unchanged; an unknown field raises."""
    first = Features(Form.OPENAI, model="m", token_ids=True)
    second = first.changed(model="n")
    assert (first.model, second.model) == ("m", "n")
    assert second == Features(Form.OPENAI, model="n", token_ids=True)
    with pytest.raises(TypeError, match="argument"):  # compiled, it is not named
        first.changed(modle="n")


def test_an_unchanged_copy_has_every_field():
    """The copy has every field, so that a new field cannot be forgotten."""
    values = {name: name for name in Features.__slots__ if name not in NO_TEXTS}
    first = Features(**{**values, **NO_TEXTS})  # type: ignore[arg-type]  # all of them have values
    assert first.changed() == first
    assert first.changed() is not first


def test_it_is_shown_with_its_fields():
    """The repr lists the fields in alphabetical order."""
    shown = repr(Body(b"a", end_of_stream=True))
    assert shown == "Body(chunk=b'a', end_of_stream=True, head=None, subset=None)"


def test_it_is_no_key():
    """Values are not hashable, because equal ones may be changed later."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(Lost(clean=True))


NO_TEXTS = {
    "chat": {"messages": []},
    "cut": True,
    "form": Form.OPENAI,
    "inflated_bytes": 4,
    "max_tokens": 1,
    "plain_text": True,
    "priority": 2,
    "prompt": b"prompt",
    "prompt_is_partial": True,
    "recomputed": True,
    "sequence_end": True,
    "sequence_start": True,
    "spans": ((0, 1),),
    "streaming": True,
    "tensor_bytes": 3,
    "timeout_s": 0.5,
    "token_ids": True,
    "truncation": Truncation(8, left=True, whole=False),
}
