"""Tokens and words of the toy model.

A token is four characters of text, so a text's token count needs no vocabulary and equals what
a router can estimate. Every generated token is exactly four characters long.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

CHARS_PER_TOKEN: Final = 4
_CONSONANTS: Final = "bdfgklmnprstvz"
_VOWELS: Final = "aeiou"


def count_tokens(text: str) -> int:
    """Return how many tokens ``text`` has; a last partial token counts as one."""
    return -(-len(text) // CHARS_PER_TOKEN)


class Words:
    """The words that follow a prompt: the same prompt always gets the same ones.

    The first token says which version speaks (``v1: ``), so that an answer shows its origin.
    """

    def __init__(self, version: str, prompt: str) -> None:
        self._first = f"v{version}: "[:CHARS_PER_TOKEN].ljust(CHARS_PER_TOKEN)
        self._seed = blake2b(f"{version}\n{prompt}".encode(), digest_size=16).digest()

    def token(self, index: int) -> str:
        """Return the token at ``index`` of the answer, counted from 0."""
        if index == 0:
            return self._first
        draw = blake2b(self._seed + index.to_bytes(4, "big"), digest_size=3).digest()
        return (
            _CONSONANTS[draw[0] % len(_CONSONANTS)]
            + _VOWELS[draw[1] % len(_VOWELS)]
            + _CONSONANTS[draw[2] % len(_CONSONANTS)]
            + " "
        )
