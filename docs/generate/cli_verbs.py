"""Usage, arguments, options and example of each verb, from typer's commands."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any, Final

import typer.main
from pages import code, table

from tidegate.cli.main import VERBS, complete

_COMMON_FROM: Final = 3
"""An option that so many verbs share, with the same text, is described once."""
_TITLES: Final = ("option", "default", "meaning")


_OF_REQUESTS = ("explain", "request")
"""Verbs with a page of their own among those that look."""


def tables() -> dict[str, str]:
    """Return the text of each verb, of the options that many share, and of the list of verbs."""
    commands = typer.main.get_command(complete()).commands  # type: ignore[attr-defined]
    options = {_key(each): each for one in commands.values() for each in _options(one)}
    uses = Counter(_key(each) for one in commands.values() for each in _options(one))
    shared = {key for key, count in uses.items() if count >= _COMMON_FROM}
    texts = {
        "common": table(
            ("option", "default", "meaning", "verbs"),
            (
                (*_row(options[key]), ", ".join(_users(key, commands)))
                for key in options
                if key in shared
            ),
        ),
        "verbs": table(("verb", "what it does"), ((_verb(name, commands)) for name in commands)),
    }
    for verb in VERBS:
        texts[verb.name] = _text(verb.name, commands[verb.name], verb.example, shared)
    return texts


def _options(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option"]


def _verb(name: str, commands: dict[str, Any]) -> tuple[str, str]:
    panel = next(verb.panel for verb in VERBS if verb.name == name)
    page = {"Run": "run", "Inspect": "look", "Change": "change"}[panel]
    if name in _OF_REQUESTS:
        page = "requests"
    return f"[{code(name)}](cli-{page}.md#{name})", _summary(commands[name])


def _summary(command: Any) -> str:
    return _plain((command.help or "").split("\n\n")[0])


def _users(key: tuple[str, ...], commands: dict[str, Any]) -> list[str]:
    return [code(name) for name, one in commands.items() if key in map(_key, one.params)]


def _key(option: Any) -> tuple[str, ...]:
    return (*option.opts, option.help or "")


def _text(name: str, command: Any, example: str, shared: set[tuple[str, ...]]) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = _options(command)
    usage = " ".join(["tidegate", name, *map(_placeholder, arguments), "[OPTIONS]"])
    own = [each for each in options if _key(each) not in shared]
    parts = [_plain(command.help or ""), f"```text\n{usage}\n```"]
    if arguments or own:
        parts.append(table(_TITLES, map(_row, [*arguments, *own])))
    common = [code(each.opts[0]) for each in options if _key(each) in shared]
    if common:
        parts.append(f"[Common options](cli.md#common-options): {', '.join(common)}.")
    parts.append(f"Example: {code(example)}")
    return "\n\n".join(parts)


def _placeholder(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    name = name if argument.nargs == 1 or name.endswith("...") else f"{name}..."
    return name if argument.required else f"[{name}]"


def _row(option: Any) -> tuple[str, str, str]:
    if option.param_type_name == "argument":
        return code(_placeholder(option).strip("[]")), _default(option), _plain(option.help)
    names = ", ".join(code(each) for each in option.opts)
    if option.secondary_opts:
        names += f" or {code(option.secondary_opts[0])}"
    if option.metavar:
        names += f" {code(option.metavar)}"
    meaning = _plain(option.help) + _choices(option)
    if option.envvar:
        meaning += f" Environment: {code(option.envvar)}."
    return names, _default(option), meaning


def _choices(option: Any) -> str:
    if isinstance(option.default, Enum):
        return f" One of {', '.join(code(each.value) for each in type(option.default))}."
    low, high = getattr(option, "min", None), getattr(option, "max", None)
    if low is not None and high is not None:
        return f" From {low:g} to {high:g}."
    if high is not None:
        return f" At most {high:g}."
    return f" At least {low:g}." if low is not None else ""


def _default(option: Any) -> str:
    value = option.default
    if option.required:
        return "required"
    if value is None or value == "" or value is False or callable(value) or value == ():
        return "off" if value is False else "none"
    if value is True:
        return "on"
    if isinstance(value, Enum):
        return code(value.value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(code, value)) or "none"
    return code(f"{value:g}" if isinstance(value, float) else value)


def _plain(text: str | None) -> str:
    """Return help without rich's escapes, one line per paragraph."""
    paragraphs = (text or "").replace("\\[", "[").split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)
