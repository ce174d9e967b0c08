"""Tokens and words of the toy model."""

import pytest
from toyllm.text import CHARS_PER_TOKEN, Words, count_tokens


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2)])
def test_a_token_is_four_characters_and_a_partial_one_counts(text, tokens):
    """Any router can count the tokens of a text without a vocabulary."""
    assert count_tokens(text) == tokens


def test_the_same_prompt_gets_the_same_words():
    """Answers are reproducible."""
    first, second = Words("1", "hello"), Words("1", "hello")
    assert [first.token(i) for i in range(50)] == [second.token(i) for i in range(50)]


@pytest.mark.parametrize("version", ["1", "2", "10", "12345"])
def test_every_token_has_exactly_four_characters(version):
    """Generated text keeps the token grid, so it can be counted like any other."""
    words = Words(version, "hello")
    assert {len(words.token(i)) for i in range(100)} == {CHARS_PER_TOKEN}


def test_the_first_token_names_the_version():
    """Who answered is visible in the text."""
    assert (Words("1", "x").token(0), Words("2", "x").token(0)) == ("v1: ", "v2: ")
