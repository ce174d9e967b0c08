"""The scale of text: bytes of a prompt for each of its tokens, where no tokenizer counts them.

This is the only definition. ``routing.scales`` learns the scale of each pool and model; until it
has, and where it cannot, ``BYTES_PER_TOKEN`` holds. Token ids have ``ID_BYTES`` each, exactly.
"""

from __future__ import annotations

from typing import Final

BYTES_PER_TOKEN: Final = 4.0
"""The rule of thumb for English text. Code has about 3, Chinese about 3 (one character), digits 1
to 2."""
LEAST: Final = 1 / 16
"""Fewest bytes per token that are learned. Text has at least about 1, but engines count what they
add: tokens of pictures, tools and templates."""
MOST: Final = 64.0
"""Most bytes per token that are learned."""
ID_BYTES: Final = 4
"""Bytes of a token id in the canonical bytes of a prompt."""
