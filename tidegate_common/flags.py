"""A service's settings as options, and what is said of a wrong one, in our words."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

    Settings = TypeVar("Settings", bound=BaseModel)

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


class Shown(NamedTuple):
    """How the option of a setting is shown, in the setting's annotation."""

    metavar: str = ""
    """What stands for its value; empty = nothing."""
    variable: str | None = None
    """Environment variable that gives its value, too."""


def reworded(message: str) -> str:
    """Return a message of pydantic in our words; any other as it is."""
    for pattern, ours in _OURS:
        found = pattern.fullmatch(message)
        if found is not None:
            return ours.format(*found.groups())
    return message


def parsed(kind: type[Settings], argv: Sequence[str] | None, about: str) -> Settings | None:
    """Return the settings that a command line gives; ``None`` if one is wrong, which stderr says.

    Args:
        kind: The settings; each is an option with its description, repeatable if it is a tuple.
        argv: The words; ``None`` = those of this process.
        about: What the program is.

    Raises:
        SystemExit: An option is unknown, lacking or without its value.
    """
    program = f"python -m {kind.__module__.partition('.')[0]}"
    parser = argparse.ArgumentParser(program, None, about, argument_default=argparse.SUPPRESS)
    for name, field in kind.model_fields.items():
        action = "append" if _repeats(field.annotation) else "store"
        help_ = f"{field.description}".replace("%", "%%")
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if default not in (None, "", False):
            help_ += f" Default: {default}."
        parser.add_argument(
            _option(name),
            action="store_true" if field.annotation is bool else action,
            required=field.is_required(),
            help=help_,
        )
    return checked(kind, vars(parser.parse_args(argv)))


def checked(kind: type[Settings], given: Mapping[str, Any]) -> Settings | None:
    """Return the settings of these values; ``None`` if one is wrong, which stderr says."""
    from pydantic import ValidationError  # noqa: PLC0415 - verbs that start no service need none

    try:
        return kind.model_validate(given)
    except ValidationError as error:
        for problem in error.errors():
            reason = reworded(problem["msg"])
            if problem["loc"]:
                value = repr(problem["input"])
                shown = "" if reason.startswith(value) else f" {value}"
                reason = f"{_option(problem['loc'][0])}{shown}: {reason}"
            sys.stderr.write(f"{reason}\n")
        return None


def _option(name: object) -> str:
    return "--" + str(name).replace("_", "-")


def _repeats(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_repeats, get_args(annotation)))
