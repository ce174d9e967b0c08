"""Tokens and words of the toy model.

A token is four characters of text, so counting tokens needs no vocabulary and equals a router's
estimate. Every generated token has exactly four characters.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

CHARS_PER_TOKEN: Final = 4
_CONSONANTS: Final = "bdfgklmnprstvz"
_VOWELS: Final = "aeiou"


def count_tokens(text: str) -> int:
    """Return the number of tokens of ``text``; a partial last token counts as one."""
    return -(-len(text) // CHARS_PER_TOKEN)


class Words:
    """Deterministic words that follow a prompt: the same prompt always gets the same words.

    The first token is the model version (``v1: ``), so that an answer shows its origin.
    """

    def __init__(self, version: str, prompt: str) -> None:
        self._first = f"v{version}: "[:CHARS_PER_TOKEN].ljust(CHARS_PER_TOKEN)
        self._seed = blake2b(f"{version}\n{prompt}".encode(), digest_size=16).digest()

    def token(self, index: int) -> str:
        """Return the token of the answer at ``index``, from 0."""
        if index == 0:
            return self._first
        draw = blake2b(self._seed + index.to_bytes(4, "big"), digest_size=3).digest()
        return (
            _CONSONANTS[draw[0] % len(_CONSONANTS)]
            + _VOWELS[draw[1] % len(_VOWELS)]
            + _CONSONANTS[draw[2] % len(_CONSONANTS)]
            + " "
        )
