"""Values of input tensors."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.requests.parsing.errors import BadRequest
from ext_proc.requests.parsing.tensors import (
    MAX_SAMPLING_BYTES,
    MAX_TEXTS,
    Tensor,
    elements,
    from_json,
    read_tensors,
    sampling_parameters,
)
from ext_proc.requests.parsing.values import MAX_PROMPT_BYTES


def values_of(tensors: list[Tensor]):
    return read_tensors({tensor.name: tensor for tensor in tensors})


def packed(*texts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def test_text_wins_over_tokens():
    """A text prompt is preferred, in the order of the known names."""
    tensors = [
        Tensor("input_ids", "INT32", bytes(8)),
        Tensor("prompt", "BYTES", packed(b"second")),
        Tensor("text_input", "BYTES", packed(b"first")),
    ]
    assert values_of(tensors).prompt == b"first"
    assert values_of(tensors[:1]).prompt == bytes(8)


def test_cut_tokens():
    """Half a token is dropped."""
    found = values_of([Tensor("input_ids", "INT64", bytes(13), whole=False)])
    assert (found.prompt, found.partial, found.token_ids) == (bytes(4), True, True)


def test_prompt_bound():
    """A prompt beyond the bound is cut and marked partial."""
    raw = packed(b"x" * (MAX_PROMPT_BYTES + 1))
    found = values_of([Tensor("prompt", "BYTES", raw)])
    assert (len(found.prompt), found.partial) == (MAX_PROMPT_BYTES, True)
    many = values_of([Tensor("input_ids", "INT32", bytes(MAX_PROMPT_BYTES + 4))])
    assert (len(many.prompt), many.partial) == (MAX_PROMPT_BYTES, True)


def test_element_bound():
    """Elements beyond the bound are not read, and the prompt is marked partial."""
    texts, missing = elements(Tensor("prompt", "BYTES", packed(b"a") * (MAX_TEXTS + 1)))
    assert (len(texts), missing) == (MAX_TEXTS, True)


def test_length_that_does_not_fit():
    """A length beyond a whole tensor is refused; beyond a cut one it is normal."""
    with pytest.raises(BadRequest, match="declares 9 bytes, but only 1 are left"):
        elements(Tensor("prompt", "BYTES", b"\x09\0\0\0a"))
    assert elements(Tensor("prompt", "BYTES", b"\x09\0\0\0a", whole=False)) == ([b"a"], True)


def test_options():
    """Limit and adapter come from their tensors, and otherwise from the sampling parameters."""
    sampling = Tensor(
        "sampling_parameters", "BYTES", packed(b'{"max_tokens": 3, "lora_name": "a"}')
    )
    found = values_of([sampling])
    assert (found.max_tokens, found.adapter) == (3, "a")
    limit = Tensor("max_tokens", "INT32", struct.pack("<i", 9))
    task = Tensor("lora_task_id", "UINT64", struct.pack("<Q", 4))
    found = values_of([sampling, limit, task])
    assert (found.max_tokens, found.adapter) == (9, "4")


def test_unreadable_options_are_unknown():
    """Options that cannot be read are left to the replica's validation."""
    tensors = [
        Tensor("sampling_parameters", "BYTES", packed(b"{" * 10)),
        Tensor("max_tokens", "INT32", b"\0"),
        Tensor("lora_task_id", "FP32", bytes(4)),
        Tensor("prompt", "FP32", bytes(4)),
    ]
    found = values_of(tensors)
    assert (found.max_tokens, found.adapter, found.prompt) == (None, None, None)
    assert sampling_parameters(b"[1]") == {}
    assert sampling_parameters(b" " * (MAX_SAMPLING_BYTES + 1)) == {}


def test_json_bounds():
    """A tensor of the JSON form is read up to the bounds."""
    ints = from_json("input_ids", "INT32", [1] * (MAX_PROMPT_BYTES // 4 + 1), whole=True)
    assert (len(ints.data), ints.whole) == (MAX_PROMPT_BYTES, False)
    texts = from_json("prompt", "BYTES", ["x" * MAX_PROMPT_BYTES, "y"], whole=True)
    assert not texts.whole
    assert from_json("prompt", "FP32", [1.0], whole=True) is None


@given(st.lists(st.text(max_size=5), max_size=5), st.booleans())
def test_json_and_raw_agree(texts, nested):
    """The JSON form, flat or nested, gives the elements that the raw form gives."""
    data = [[text] for text in texts] if nested else texts
    found, missing = elements(from_json("prompt", "BYTES", data, whole=True))
    assert (found, missing) == ([text.encode() for text in texts], False)


@pytest.mark.parametrize("data", [[1, 2], [[1, 2]], [[[1, 2]]], [[1], [2]]])
def test_nesting_says_nothing(data):
    """A tensor may have any nesting; its elements are read in row-major order."""
    assert from_json("input_ids", "INT32", data, whole=True).data == struct.pack("<2i", 1, 2)


@pytest.mark.parametrize("data", [[1, [2]], [[1], 2], [[1], [[2]]]])
def test_a_ragged_tensor_is_unread(data):
    """Elements beside arrays are counted, but their order would cost a walk."""
    assert from_json("input_ids", "INT32", data, whole=True) is None
    assert from_json("prompt", "BYTES", ["a", ["b"]], whole=True) is None
