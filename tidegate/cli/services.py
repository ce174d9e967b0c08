"""Verbs that run a service: the service's settings are their options.

Rules:

1. Types, bounds, defaults and descriptions of options are those of the settings (``Shown``).
2. A parameter of the verb takes the place of the setting of its name.
3. Loading settings takes longer than all other verbs' options, so that is done for a verb that is
   asked for (``tidegate.cli.main``).
"""

from __future__ import annotations

from enum import StrEnum
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from tidegate.terminal.errors import USAGE
from tidegate_common.flags import Shown, checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def with_settings(verb: Callable[..., None], service: str) -> Callable[..., None]:
    """Return a verb with an option for each setting of its service.

    Args:
        verb: Takes the settings as ``settings``, and its own options.
        service: Where the settings are, ``module:Class``.
    """
    module, _, name = service.partition(":")
    kind = getattr(import_module(module), name)
    hints = get_type_hints(verb, localns={name: kind}, include_extras=True)
    own = {
        each: parameter.replace(annotation=hints[each], kind=Parameter.KEYWORD_ONLY)
        for each, parameter in signature(verb).parameters.items()
        if each != "settings"
    }
    fields = {name: field for name, field in kind.model_fields.items() if name not in own}
    # Those that all services share come last.
    shared = kind.__mro__[1].model_fields
    names = sorted(fields, key=lambda each: each in shared)
    options = [*own.values(), *(_option(each, fields[each]) for each in names)]
    none = {each.name for each in options if each.default in (None, "")}

    @wraps(verb)
    def run(**given: Any) -> None:
        taken = {each: given.pop(each) for each in own}
        known = {
            each: v for each, v in given.items() if v not in (None, "", []) or each not in none
        }
        settings = checked(kind, known)
        if settings is None:
            raise typer.Exit(USAGE)
        verb(settings, **taken)

    # What typer reads.
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    return run


def _option(name: str, field: Any) -> Parameter:
    """Return the option of a setting."""
    about = list(_metadata(field))
    shown = next((each for each in about if isinstance(each, Shown)), Shown())
    kind = _kind(name, field.annotation)
    default: Any = Parameter.empty if field.is_required() else field.default
    if field.default_factory is not None:
        kind, default = kind | None, None
    elif isinstance(kind, type) and issubclass(kind, StrEnum):
        default = kind(default)
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=" ".join(str(field.description).split()).replace("[", "\\["),
        metavar=shown.metavar or None,
        envvar=shown.variable,
        min=next((each.ge for each in about if hasattr(each, "ge")), None),
        max=next((each.le for each in about if hasattr(each, "le")), None),
    )
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _metadata(given: Any) -> Iterator[Any]:
    """Yield what annotations say of a setting, those inside of ``X | None`` included."""
    for each in getattr(given, "metadata", getattr(given, "__metadata__", ())):
        yield from _metadata(each) if hasattr(each, "metadata") else (each,)
    for part in get_args(getattr(given, "annotation", given)):
        yield from _metadata(part)


def _kind(name: str, annotation: Any) -> Any:
    """Return a setting's type as typer takes it."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(name, parts[0])
    if origin in {Union, UnionType}:
        return _kind(name, parts[0]) | None
    if origin is tuple:
        return list[str]
    if origin is Literal:
        return StrEnum(name, {each.upper(): each for each in parts})
    return annotation
