"""What is said of an option's wrong value: our words, not those of the library that checks it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS: Final = tuple(
    (re.compile(pattern, re.DOTALL), ours)
    for pattern, ours in (
        (r"Value error, (.*)", "{}"),
        (r"Input should be greater than or equal to (\S+)", "write at least {}"),
        (r"Input should be less than or equal to (\S+)", "write at most {}"),
        (r"Input should be greater than (\S+)", "write more than {}"),
        (r"Input should be less than (\S+)", "write less than {}"),
        (r"Input should be a valid integer.*", "write a whole number"),
        (r"Input should be a valid number.*", "write a number"),
        (r"Input should be a valid boolean.*", "write true or false"),
        (r"Input should be a finite number", "write a finite number"),
        (r"Input should be ('.*)", "write {}"),
        (r"String should have at least (\S+) characters?", "write at least {} characters"),
        (r"String should have at most (\S+) characters?", "write at most {} characters"),
    )
)
"""Sentences of pydantic and ours."""


def reworded(message: str) -> str:
    """Return a message of pydantic in our words; any other as it is."""
    for pattern, ours in _OURS:
        found = pattern.fullmatch(message)
        if found is not None:
            return ours.format(*found.groups())
    return message


def option_of(problem: Mapping[str, Any]) -> str:
    """Return the option that an entry of ``ValidationError.errors()`` concerns; empty if none."""
    where = problem["loc"]
    return "--" + str(where[0]).replace("_", "-") if where else ""
