"""The corpus: inputs worth repeating, one per line of ``corpus.txt``: target, name, base64."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("corpus.txt")
MAX_INPUTS = 500
"""All are replayed with the unit tests, so there must not be too many."""


class Input(NamedTuple):
    """One input of one target."""

    target: str
    name: str
    data: bytes


def inputs(target: str) -> list[Input]:
    """Return the inputs of a target."""
    rows = [line.split(" ") for line in FILE.read_text().splitlines()]
    return [Input(row[0], row[1], base64.b64decode(row[2])) for row in rows if row[0] == target]
