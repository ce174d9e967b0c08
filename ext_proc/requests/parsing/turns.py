"""Writes the turns of a conversation as canonical bytes, so that it keeps its prefix as it grows.

Rules:

1. A turn is its content, then who speaks, so that of a turn that is cut off the content counts. A
   turn that is a text and a role has the same bytes in every form of request.
2. A content of one text part is that text. Between parts stands a mark.
3. What a tool was asked and what it answered counts as text, as templates write it out. Images and
   the like count by their digest. Ids and marks of cache control are left out: clients move these.
4. The bytes of a conversation that is cut off at any byte are a prefix of its bytes, and so are
   those of one that has too many pieces, which are written up to ``MAX_PIECES``.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
import xxhash

from ext_proc.requests.parsing import values
from ext_proc.requests.parsing.budget import MAX_PIECES
from ext_proc.requests.parsing.errors import BadRequest

MAX_TURNS: Final = 4096
MAX_PARTS: Final = 1024
"""Maximum parts of one turn's content."""

ROLE_MARK: Final = "\x1f"
TURN_END: Final = "\x1e"
PART_MARK: Final = "\x1d"
MEDIA_MARK: Final = "\x1c"

_CONTENTS: Final = ("content", "output", "arguments")
"""Where the text of a turn is: of a message, of a tool's answer, of a call of a tool."""
_NAMES: Final = ("role", "name", "type")
_TOOL_USE: Final = "tool_use"
_LEVELS: Final = 2
"""Levels of parts that are read: those of a message, and those of a tool's answer in it."""


def system_turn(pieces: list[str], text: str) -> None:
    """Write what stands before the conversation."""
    pieces += (text, ROLE_MARK, "system", TURN_END)


def write_turns(pieces: list[str], turns: object, place: str, *, cut: bool) -> None:
    """Write the turns; ``cut`` says that the last one may be incomplete.

    Raises:
        BadRequest: They are no array of objects, are too many or nest too deeply.
    """
    if not isinstance(turns, list):
        raise BadRequest(f"`{place}` must be an array, not {values.json_type(turns)}")
    if len(turns) > MAX_TURNS:
        raise BadRequest(f"the request has more than {MAX_TURNS} messages; send fewer")
    last = len(turns) - 1
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            kind = values.json_type(turn)
            raise BadRequest(f"`{place}[{index}]` must be an object, not {kind}")
        if len(pieces) > MAX_PIECES:
            return
        _write(pieces, turn, cut=cut and index == last)


def packed(pieces: list[str], *, cut: bool) -> tuple[bytes, bool]:
    """Return the bytes, at most ``MAX_PROMPT_BYTES``, and whether something is missing."""
    text = "".join(pieces).encode()
    most = values.MAX_PROMPT_BYTES
    return text[:most], cut or len(text) > most or len(pieces) > MAX_PIECES


def texts(value: object) -> str:
    """Return a text, or the texts of parts one after the other."""
    if isinstance(value, str):
        return value
    parts: list[Any] = value if isinstance(value, list) else []
    if len(parts) > MAX_PARTS:
        raise BadRequest(f"a message of the request has more than {MAX_PARTS} parts; send fewer")
    found = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "".join([each for each in found if isinstance(each, str)])


def _write(pieces: list[str], turn: dict[str, Any], *, cut: bool) -> None:
    content = next((turn[key] for key in _CONTENTS if turn.get(key) is not None), None)
    _content(pieces, content, _LEVELS, cut=cut)
    if cut or len(pieces) > MAX_PIECES:
        return
    pieces.append(ROLE_MARK)
    pieces += [turn[key] for key in _NAMES if isinstance(turn.get(key), str)][:1]
    if content is None:
        pieces += (MEDIA_MARK, _digest(turn))
    pieces.append(TURN_END)


def _content(pieces: list[str], content: object, levels: int, *, cut: bool) -> None:
    if isinstance(content, str):
        pieces.append(content)
    elif isinstance(content, list):
        if len(content) > MAX_PARTS:
            message = f"a message of the request has more than {MAX_PARTS} parts; send fewer"
            raise BadRequest(message)
        last = len(content) - 1
        for index, part in enumerate(content):
            if len(pieces) > MAX_PIECES:
                return
            if index:
                pieces.append(PART_MARK)
            if isinstance(part, str):
                pieces.append(part)
            elif isinstance(part, dict):
                _part(pieces, part, levels - 1, cut=cut and index == last)
    elif content is not None and not cut:
        pieces += (MEDIA_MARK, _digest(content))


def _part(pieces: list[str], part: dict[str, Any], levels: int, *, cut: bool) -> None:
    text = part.get("text")
    if isinstance(text, str):
        pieces.append(text)
    elif levels and isinstance(part.get("content"), str | list):
        _content(pieces, part["content"], levels, cut=cut)
    elif not cut and part.get("type") == _TOOL_USE:
        pieces.append(_canonical([part.get("name"), part.get("input")]).decode())
    elif not cut:
        part.pop("cache_control", None)
        pieces += (MEDIA_MARK, _digest(part))


def _canonical(value: object) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        raise BadRequest("a message of the request nests too deeply; send it flatter") from None


def _digest(value: object) -> str:
    return xxhash.xxh3_128_hexdigest(_canonical(value))
