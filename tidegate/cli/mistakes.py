"""What is said of a wrong command line: one sentence with what is wrong and how to mend it."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final

import typer

from tidegate_common.flags import reworded

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MAX_SHOWN: Final = 128
"""Most characters that are shown of a wrong word."""
MAX_LISTED: Final = 12
"""Most names that are listed where none is close."""

WRONG_USE: Final[type[Exception]] = typer.BadParameter.__mro__[2]
"""What typer raises for each wrong command line."""

_NOT_ONE_OF: Final = re.compile(r"'(?P<word>.*)' is not one of (?P<known>'.*')\.?$", re.DOTALL)
_NO_COMMAND: Final = re.compile(r"No such command '(?P<word>[^']*)'", re.DOTALL)
_MORE: Final = re.compile(r"Got unexpected extra arguments? ?\(?s?\)? ?\((?P<words>.*)\)\.?")
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_NO_VALUE: Final = re.compile(r"Option '(?P<option>--?[^']*)' requires an argument\.?")


def close(word: str, known: Collection[str]) -> str:
    """Return a hint for a name that does not exist: the closest ones, or what there is."""
    near = difflib.get_close_matches(word, known, 1)
    if near:
        return f"did you mean {near[0]}?"
    if not known:
        return "there are none"
    listed = list(known)[:MAX_LISTED]
    more = len(known) - len(listed)
    return f"there are {', '.join(listed)}" + (f" and {more} more" if more > 0 else "")


def address(given: str) -> str:
    """Return the value of an option that takes an address.

    Raises:
        typer.BadParameter: It is no ``host:port``.
    """
    if _ADDRESS.fullmatch(given) is None:
        raise typer.BadParameter(
            f"'{given[:MAX_SHOWN]}' is no address; write host:port, for example 127.0.0.1:18001"
        )
    return given


def servers(given: str) -> str:
    """Return addresses that are separated by commas; raises as ``address``."""
    return ",".join(map(address, given.split(",")))


def some_servers(given: str) -> str:
    """Return addresses that are separated by commas, or none; raises as ``address``."""
    return servers(given) if given else ""


def addresses(given: list[str] | None) -> list[str]:
    """Return the values of an option that takes addresses; raises as ``address``."""
    return [address(each) for each in given or ()]


def page(given: str) -> str:
    """Return the value of an option that takes the URL of a page.

    Raises:
        typer.BadParameter: It is none.
    """
    if not given.startswith(("http://", "https://")):
        raise typer.BadParameter(
            f"'{given[:MAX_SHOWN]}' is no URL; write for example http://127.0.0.1:8002/metrics"
        )
    return given


def sentence(error: Any, examples: Mapping[str, str]) -> str:
    """Return what is wrong with a command line.

    Args:
        error: The ``WRONG_USE`` that typer raised.
        examples: Example of each verb.
    """
    context = getattr(error, "ctx", None)
    command = getattr(context, "command", None)
    verb = str(getattr(context, "info_name", "") or "")
    message = " ".join(str(error.message or "").split())
    said = _said(error, command, message, examples)
    example = examples.get(verb)
    if example is not None and not said.endswith("?"):
        said += f"; for example: {example}"
    return f"{verb}: {said}" if example is not None else said


def _said(error: Any, command: Any, message: str, examples: Mapping[str, str]) -> str:
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities"):
        return f"no option {option[:MAX_SHOWN]}; {close(option, _options(command))}"
    unknown = _NO_COMMAND.search(message)
    if unknown is not None:
        word = unknown["word"]
        return f"no verb '{word[:MAX_SHOWN]}'; {close(word, tuple(examples))}"
    name = _name(error)
    if hasattr(error, "param_type"):
        return f"{name} is missing{_choices(error.param)}"
    said = _reworded(message)
    return f"{name}: {said}" if name else said


def _reworded(message: str) -> str:
    message = reworded(message)
    listed, more, valueless = (each.fullmatch(message) for each in (_NOT_ONE_OF, _MORE, _NO_VALUE))
    if listed is not None:
        word, known = listed["word"], re.findall(r"'([^']*)'", listed["known"])
        return f"'{word[:MAX_SHOWN]}' does not exist; {close(word, known)}"
    if more is not None:
        return f"there is no argument {more['words']}"
    if valueless is not None:
        return f"{valueless['option']} needs a value"
    return message.rstrip(".")


def _name(error: Any) -> str:
    """Return the option or argument of an error; empty if it concerns none."""
    given = getattr(error, "param", None)
    if given is None:
        return ""
    if given.param_type_name == "option":
        longest: str = max(given.opts, key=len)
        return longest
    return str(given.metavar or given.name.upper()).strip("[]")


def _choices(given: Any) -> str:
    kind = getattr(getattr(given, "type_descriptor", None), "annotation", None)
    members = getattr(kind, "__members__", None)
    if not members:
        return ""
    return f": {', '.join(str(each.value) for each in members.values())}"


def _options(command: Any) -> list[str]:
    found = [name for each in getattr(command, "params", ()) for name in each.opts]
    return [name for name in (*found, "--help") if name.startswith("--")]
