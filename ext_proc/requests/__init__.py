"""Parses requests into features. Pure; unknown values are ``None``.

``read_head`` reads method, path and headers and never raises. ``read_body`` adds what only the body
contains, from the whole body or its first part, and raises only ``BadRequest``.
"""

from ext_proc.requests.blocks import Blocks, Tokenizer, prompt_blocks, token_blocks
from ext_proc.requests.chats import Chats, ChatTemplate, Sample
from ext_proc.requests.parsing.errors import BadRequest, Malformed, UnsoundRequest
from ext_proc.requests.pieces import Pieces
from ext_proc.requests.reading import read_body, read_head, served_by, session_of, split_adapter

__all__ = [
    "BadRequest",
    "Blocks",
    "ChatTemplate",
    "Chats",
    "Malformed",
    "Pieces",
    "Sample",
    "Tokenizer",
    "UnsoundRequest",
    "prompt_blocks",
    "read_body",
    "read_head",
    "served_by",
    "session_of",
    "split_adapter",
    "token_blocks",
]
