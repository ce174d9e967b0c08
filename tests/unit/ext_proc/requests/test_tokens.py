"""Blocks of tokens, with tiny tokenizers trained here."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace
from tokenizers import decoders, models, pre_tokenizers, trainers

from ext_proc.requests import read_body, read_head
from ext_proc.requests.blocks import (
    DROPPED_TOKENS,
    MAX_BLOCKS,
    MAX_TEXT_BYTES,
    prompt_blocks,
    token_blocks,
)
from ext_proc.requests.forms.openai import read_openai
from ext_proc.requests.parsing.budget import MAX_PROMPTS
from ext_proc.routing.values.request import Features, Form, Truncation

SENTENCE = "the tide gauge says high water at noon and low water at six in the harbour"
WORDS = SENTENCE.split()
SENTENCES = [SENTENCE, "the water is high", "noon? low! tide's gauges", "unter München 水位"]


class Bpe:
    """A byte-level BPE tokenizer as GPT-2's and Llama 3's are, with a few hundred merges."""

    def __init__(self) -> None:
        self.inner = HuggingFace(models.BPE())
        self.inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        self.inner.train_from_iterator(SENTENCES * 3, trainer)

    def encode(self, text, *, special=True):
        return self.inner.encode(text, add_special_tokens=special).ids


class Words:
    """One token per word, after a special one if that is asked for."""

    def __init__(self, first=None):
        self.first = first

    def encode(self, text, *, special=True):
        head = [self.first] if special and self.first is not None else []
        return head + [WORDS.index(word) if word in WORDS else 99 for word in text.split()]


class Dumb:
    """Returns no ids for any text."""

    def encode(self, _, *, special=True):  # noqa: ARG002 - the interface
        return None


BPE = Bpe()


def text(prompt, *, partial=False):
    return Features(Form.OPENAI, model="m", prompt=prompt.encode()[:], prompt_is_partial=partial)


def ids(numbers):
    return Features(
        Form.OPENAI, model="m", prompt=struct.pack(f"<{len(numbers)}I", *numbers), token_ids=True
    )


def test_ids_are_cut_by_tokens():
    """Blocks of ids have ``block_tokens`` ids, whatever ``block_chars`` is."""
    found = token_blocks(ids(range(50)), 16, 8, None)
    assert (len(found.hashes), found.block_tokens, found.tokens) == (6, 8.0, 50)


def test_texts_are_cut_by_characters_without_a_tokenizer():
    """Without a tokenizer blocks consist of characters, as before."""
    features = text("x" * 100)
    assert token_blocks(features, 16, 8, None)[:4] == (prompt_blocks(features, 16), 4.0, None, 4.0)
    found = token_blocks(features, 16, 8, None, bytes_per_token=0.5)
    assert found[:4] == (prompt_blocks(features, 16), 32.0, None, 0.5)


def test_a_text_without_ids_is_cut_by_characters():
    """A tokenizer that fails on a text costs only accuracy."""
    features = text("x" * 100)
    assert token_blocks(features, 16, 8, Dumb()) == token_blocks(features, 16, 8, None)


def test_no_prompt():
    """An unknown prompt has no blocks and no tokens."""
    assert token_blocks(Features(Form.OTHER), 16, 8, Words())[:4] == ((), 4.0, None, 4.0)


def test_ids_and_text_are_the_same_prompt():
    """A text has the blocks of the ids to which the tokenizer maps it."""
    prompt = " ".join(WORDS * 4)
    known = token_blocks(ids(BPE.encode(prompt)), 16, 4, BPE)
    assert len(known.hashes) > 8
    assert token_blocks(text(prompt), 256, 4, BPE) == known


@pytest.mark.parametrize(
    ("layout", "datatype"), [("<6i", "INT32"), ("<6q", "INT64"), ("<6Q", "UINT64")]
)
def test_ids_of_every_form_are_the_same_prompt(layout, datatype):
    """OpenAI's ids and Triton's tensors of any width have the same blocks."""
    numbers = [5, 6, 7, 128_000, 9, 10]
    raw = struct.pack(layout, *numbers)
    head = (
        f'{{"inputs":[{{"name":"input_ids","shape":[1,6],"datatype":"{datatype}",'
        f'"parameters":{{"binary_data_size":{len(raw)}}}}}]}}'
    ).encode()
    headers = {"inference-header-content-length": str(len(head))}
    triton = read_body(
        read_head("POST", "/v2/models/m/infer", headers), headers, head + raw, complete=True
    )
    body = f'{{"model":"m","prompt":{numbers}}}'.encode()
    openai = read_body(read_head("POST", "/v1/completions", {}), {}, body, complete=True)
    assert triton.token_ids
    assert openai.token_ids
    assert token_blocks(triton, 256, 2, None) == token_blocks(openai, 256, 2, None)


def test_appended_turns_extend_the_chain():
    """A conversation that grows by whole words keeps all its blocks."""
    turns = [" ".join(WORDS), " ".join(WORDS[::-1]), " ".join(WORDS[::2])]
    chains = [
        token_blocks(text(" ".join(turns[:count])), 256, 4, BPE).hashes for count in (1, 2, 3)
    ]
    assert chains[0] == chains[1][: len(chains[0])]
    assert chains[1] == chains[2][: len(chains[1])]
    assert len(chains[0]) < len(chains[1]) < len(chains[2])


@given(
    st.lists(st.sampled_from([*WORDS, "München", "水位", "x" * 40, "a,b", "\n"]), max_size=40),
    st.data(),
)
def test_a_cut_prompt_is_a_prefix(words, data):
    """However a prompt of words is cut, its blocks begin the whole prompt's, and few are lost."""
    prompt = " ".join(words).encode()
    cut = prompt[: data.draw(st.integers(0, len(prompt)))]
    features = Features(Form.OPENAI, model="m", prompt=prompt)
    whole = token_blocks(features, 256, 2, BPE).hashes
    part = token_blocks(features.changed(prompt=cut, prompt_is_partial=True), 256, 2, BPE)
    assert part.hashes == whole[: len(part.hashes)]
    assert part.tokens is None


def test_a_cut_prompt_loses_one_word():
    """Where words are separated, only the last one is left out."""
    part = token_blocks(text("the tide gauge sa", partial=True), 256, 1, Words())
    assert part.hashes == token_blocks(text("the tide gauge"), 256, 1, Words()).hashes


def test_a_cut_prompt_without_spaces_loses_tokens():
    """Without separators the last ``DROPPED_TOKENS`` are dropped, which may be all."""
    whole = token_blocks(text("水" * 100), 256, 1, BPE)
    part = token_blocks(text("水" * 60, partial=True), 256, 1, BPE)
    seen = len(BPE.encode("水" * 60))
    assert len(part.hashes) == seen - DROPPED_TOKENS
    assert part.hashes == whole.hashes[: len(part.hashes)]
    assert token_blocks(text("水", partial=True), 256, 1, BPE).hashes == ()


def test_text_bound():
    """Of a long text its first ``MAX_TEXT_BYTES`` are tokenised, and its length is unknown."""
    seen = []

    class Spy:
        def encode(self, words, *, special=True):  # noqa: ARG002 - the interface
            seen.append(len(words))
            return Words().encode(words)

    prompt = "tide " * (MAX_TEXT_BYTES // 5 + 100)
    found = token_blocks(text(prompt), 256, 64, Spy())
    assert seen[0] <= MAX_TEXT_BYTES
    assert found.tokens == pytest.approx(len(prompt) / 5, rel=0.01)
    assert found.hashes == token_blocks(text(prompt[:-5]), 256, 64, Spy()).hashes


def test_block_bound():
    """A prompt has ``MAX_BLOCKS`` blocks at most; its tokens are still counted."""
    found = token_blocks(text("tide " * (MAX_BLOCKS + 9)), 256, 1, Words())
    assert (len(found.hashes), found.tokens) == (MAX_BLOCKS, MAX_BLOCKS + 9)
    assert len(token_blocks(ids(range(MAX_BLOCKS + 9)), 256, 1, None).hashes) == MAX_BLOCKS


def test_text_that_is_no_utf8():
    """Any bytes have blocks."""
    features = Features(Form.GRPC_INFER, model="m", prompt=b"\xff\xfe tide")
    assert token_blocks(features, 256, 1, BPE).hashes


def test_batch_of_token_ids():
    """A cut prompt of ids has an unknown number of tokens."""
    features = ids(range(10)).changed(prompt_is_partial=True)
    assert token_blocks(features, 256, 4, None).tokens is None


def same(found, tokens, size=2):
    """Whether blocks are those of these ids."""
    return found.hashes == token_blocks(ids(tokens), 256, size, None).hashes


def test_a_text_without_special_tokens():
    """`add_special_tokens: false` drops what the tokenizer puts before a text."""
    plain = text("tide gauge says high").changed(plain_text=True)
    known = Words(first=77)
    words = known.encode("tide gauge says high", special=False)
    assert same(token_blocks(text("tide gauge says high"), 256, 2, known), [77, *words])
    assert same(token_blocks(plain, 256, 2, known), words)


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        (Truncation(4, left=True, whole=False), [77, 3, 4, 5]),
        (Truncation(4, left=False, whole=False), [77, 1, 2, 3]),
        (Truncation(4, left=True, whole=True), [2, 3, 4, 5]),
        (Truncation(9, left=True, whole=False), [77, 1, 2, 3, 4, 5]),
    ],
)
def test_a_truncated_text(truncation, kept):
    """Its blocks are those of what the engine keeps, and so are its tokens."""
    prompt = text(" ".join(WORDS[1:6])).changed(truncation=truncation)
    expected = [each if each == 77 else WORDS.index(WORDS[each]) for each in kept]
    found = token_blocks(prompt, 256, 2, Words(first=77))
    assert found.tokens == len(kept)
    assert same(found, expected)


def test_truncated_ids():
    """They are cut as they are; what was not read whole has no known end."""
    last = ids(range(10)).changed(truncation=Truncation(4, left=True, whole=True))
    found = token_blocks(last, 256, 2, None)
    assert found.tokens == 4
    assert same(found, range(6, 10))
    cut = token_blocks(last.changed(prompt_is_partial=True), 256, 2, None)
    assert (cut.hashes, cut.tokens) == ((), 4)


def test_a_long_text_that_is_truncated_has_no_blocks():
    """Its end is not tokenised; it costs no more than what the engine keeps."""
    prompt = text("tide " * MAX_TEXT_BYTES).changed(
        truncation=Truncation(100, left=True, whole=False)
    )
    found = token_blocks(prompt, 256, 2, Words())
    assert (found.hashes, found.tokens) == ((), 100)


# --- Batches ------------------------------------------------------------------------------------


def read(body):
    """Return the features of a completion."""
    return read_openai(Features(Form.OPENAI), json.dumps(body).encode(), complete=True)


def alone(prompt):
    """Return the blocks of a prompt that is sent alone."""
    return token_blocks(read({"model": "m", "prompt": prompt}), 16, 4, None).hashes


@pytest.mark.parametrize(
    "prompts", [["a" * 40, "b" * 50, "a" * 40 + "c" * 30], ["ä" * 20, "b" * 9], ["a" * 40]]
)
def test_each_prompt_of_a_batch_has_its_own_blocks(prompts):
    """So a prompt matches whether it comes alone, in an array of one, or beside others."""
    found = token_blocks(read({"model": "m", "prompt": prompts}), 16, 4, None)
    known = [each for prompt in prompts if (each := alone(prompt))]
    assert found.batch == (tuple(known) if len(known) > 1 else ())
    assert set(found.hashes) == {block for chain in known for block in chain}
    assert len(set(found.hashes)) == len(found.hashes)


def test_each_array_of_token_ids_has_its_own_blocks():
    """Their tokens are known."""
    one, two = list(range(10)), list(range(20, 33))
    found = token_blocks(read({"model": "m", "prompt": [one, two]}), 16, 4, None)
    assert found.batch == (alone(one), alone(two))
    assert found.tokens == 23


def test_a_batch_is_bounded():
    """In prompts, and in blocks."""
    many = [f"{number:016x}" * 2 for number in range(200)]
    found = token_blocks(read({"model": "m", "prompt": many}), 16, 4, None)
    assert len(found.batch) == MAX_PROMPTS
    long = ["a" * 30_000, "b" * 30_000]
    found = token_blocks(read({"model": "m", "prompt": long}), 16, 4, None)
    assert len(found.hashes) == MAX_BLOCKS
    assert found.batch[0] == alone("a" * 30_000)


def test_texts_of_a_batch_are_tokenized_each():
    """With a tokenizer their blocks are those of their ids."""
    body = {"model": "m", "prompt": [SENTENCES[0] * 2, SENTENCES[1] * 2]}
    found = token_blocks(read(body), 16, 4, BPE)
    ones = [token_blocks(text(each), 16, 4, BPE) for each in body["prompt"]]
    assert [len(each) for each in found.batch] == [len(each.hashes) for each in ones]
    assert found.tokens == sum(each.tokens for each in ones)
