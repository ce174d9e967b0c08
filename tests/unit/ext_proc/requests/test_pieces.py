"""Ids of rendered chats, by piece."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HuggingFace

from ext_proc.control.tokenizer_files import FileTokenizer
from ext_proc.requests.pieces import ENTRY_BYTES, MAX_NEW_BYTES, MAX_PIECES, Pieces

TEXTS = ["low tide at noon", "high tide, and a 1.5 m swell\n", "Ä 中 潮汐 "]


def byte_level(*added):
    model = HuggingFace(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(TEXTS * 20, trainer)
    model.add_special_tokens(list(added or ("<|a|>", "<|end|>")))
    return FileTokenizer(model)


class Counting:
    """Counts the characters that are tokenized."""

    def __init__(self, inner):
        self.inner = inner
        self.chars = 0

    def encode(self, text, *, special=True):
        self.chars += len(text)
        return self.inner.encode(text, special=special)


WHOLE = byte_level()
PIECES = Pieces(WHOLE, WHOLE.boundaries(), max_bytes=4000)


def ids(found):
    return list(struct.unpack(f"<{len(found.packed) // 4}I", found.packed))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*TEXTS, "<|a|>", "<|end|>", " ", "\n", "x", "<|", "é"])))
def test_pieces_have_the_ids_of_the_whole(words):
    """Whatever stands around a boundary, with a cache that drops pieces."""
    text = "".join(words)
    found = PIECES.encode(text)
    assert ids(found) == list(WHOLE.encode(text, special=False))
    assert (found.tokens, found.whole) == (len(ids(found)), True)
    assert PIECES.cached_bytes <= 4000


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*TEXTS, "<|a|>", " ", "x"])), st.sampled_from([*TEXTS, "y", " "]))
def test_a_text_that_goes_on_has_ids_that_stay(words, rest):
    """Of a chat with an image what is before it counts, however the template goes on."""
    text = "".join(words)
    found = PIECES.encode(text, partial=True)
    assert not found.whole
    whole = list(WHOLE.encode(text + rest, special=False))
    assert whole[: len(ids(found))] == ids(found)


def test_a_turn_costs_its_new_text_only():
    """A long conversation is not tokenized again."""
    counting = Counting(WHOLE)
    pieces = Pieces(counting, WHOLE.boundaries())
    history = "".join(f"<|a|>{text} {turn}<|end|>" for turn in range(50) for text in TEXTS)
    pieces.encode(history)
    counting.chars = 0
    pieces.encode(history + "<|a|>high tide")
    assert counting.chars == len("<|a|>high tide")


def test_tokens_that_take_what_is_before_them_are_no_boundaries():
    """Such a token takes white space, or is none within a word: ids before it would differ."""
    tokenizer = byte_level(
        AddedToken("<|l|>", lstrip=True), AddedToken("<|w|>", single_word=True), "<|a|>"
    )
    assert tokenizer.boundaries() == ("<|a|>",)


def test_what_does_not_separate_in_trials_is_no_boundary():
    """A text that is no token of its own merges with its neighbours."""
    assert Pieces(WHOLE, ["tide", "<|a|>", ""]).boundaries == ("<|a|>",)


def test_at_most_so_much_new_text_is_tokenized():
    """A huge chat costs bounded time, and is known further at each turn."""
    counting = Counting(WHOLE)
    pieces = Pieces(counting, WHOLE.boundaries())
    counting.chars = 0
    text = "".join(f"<|a|>{turn} " + "tide " * 2000 for turn in range(20))
    first = len(pieces.encode(text).packed)
    assert counting.chars <= MAX_NEW_BYTES
    second = pieces.encode(text)
    assert first < len(second.packed)
    exact = WHOLE.encode(text, special=False)
    assert exact[: len(ids(second))] == ids(second)
    assert not second.whole
    assert second.tokens == pytest.approx(len(exact), rel=0.1)


def test_at_most_so_many_pieces_are_made():
    """A text of boundaries alone costs bounded time."""
    found = PIECES.encode("<|a|>" * 3 * MAX_PIECES)
    assert len(found.packed) <= 4 * (MAX_PIECES + MAX_NEW_BYTES)
    assert set(ids(found)) == {WHOLE.encode("<|a|>", special=False)[0]}


def test_the_cache_drops_what_was_used_least_recently():
    """And counts what it holds."""
    counting = Counting(WHOLE)
    pieces = Pieces(counting, WHOLE.boundaries(), max_bytes=2 * (ENTRY_BYTES + 4 * 8))
    for text in ("<|a|>x", "<|a|>y", "<|a|>x", "<|a|>z"):
        pieces.encode(text)
    counting.chars = 0
    pieces.encode("<|a|>x")
    assert counting.chars == 0
    pieces.encode("<|a|>y")
    assert counting.chars > 0


class Failing:
    def encode(self, text, *, special=True):  # noqa: ARG002 - an interface
        return None if "bad" in text else [1]


@pytest.mark.parametrize("text", ["bad", "<|a|>ok<|a|>bad", "bad" + "x" * MAX_NEW_BYTES])
def test_a_text_that_has_no_ids_has_none_by_pieces(text):
    """A tokenizer that fails on a piece costs accuracy only."""
    assert Pieces(Failing()).encode(text) is None
