"""Tables of the fleet file's fields, from its pydantic models."""

from __future__ import annotations

import json
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pages import code, table
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from xds_server.fleet.model import fields
from xds_server.fleet.model.edge import TypedJson
from xds_server.fleet.model.fleet import Fleet
from xds_server.fleet.model.routing import PolicyName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pages import Page

_NAMED: Final = (
    (fields.Duration, "duration"),
    (fields.HostPort, "`ip:port`"),
    (fields.ReplicaAddress, "`ip:port` or `name:port`"),
    (fields.DnsName, "DNS name"),
    (fields.LocalPath, "absolute path"),
    (fields.Port, "port"),
    (fields.TcpAddress, "`tcp://ip:port`"),
    (fields.Name, "name"),
    (fields.EndpointId, "endpoint id"),
    (fields.HeaderName, "header name"),
    (fields.HeaderValue, "header value"),
    (fields.CookieName, "cookie name"),
    (fields.CookieValue, "cookie value"),
    (fields.FilePath, "absolute path"),
    (fields.ServerName, "host name"),
    (fields.ModelVersion, "version"),
    (fields.MetricsUrl, "`http://` URL"),
    (fields.JwksUrl, "`http://` or `https://` URL"),
    (fields.Origin, "origin"),
    (fields.HostPattern, "host name"),
    (fields.ContentType, "media type"),
    (TypedJson, "Envoy message"),
    (fields.ModelName, "model name"),
    (fields.HttpPath, "HTTP path"),
    (fields.Label, "label"),
)
"""How a field's type is called in the tables; the pages say what each may hold."""
_TITLES: Final = ("field", "type", "default", "meaning")


def tables(pages: Sequence[Page]) -> dict[str, str]:
    """Return a table of each model's fields by the model's name."""
    models = {_name(model): model for model in _models(Fleet)}
    return {name: table(_TITLES, _rows(model, pages)) for name, model in models.items()}


def _name(model: type[BaseModel]) -> str:
    return model.__name__.removesuffix("Spec")


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    hints = get_type_hints(model, include_extras=True)
    for hint in (hints[name] for name in model.model_fields):
        for part in _parts(hint):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from _models(part)


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for inner in get_args(hint):
        yield from _parts(inner)


def _rows(model: type[BaseModel], pages: Sequence[Page]) -> Iterator[tuple[str, str, str, str]]:
    hints = get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        inner = [part for part in _parts(hints[name]) if _is_model(part)]
        meaning = (field.description or "").replace("``", "`")
        if inner:
            meaning = f"{meaning} See {_link(_name(inner[0]), name, pages)}.".strip()
        if not meaning:
            raise ValueError(f"{model.__name__}.{name} has no docstring")
        yield code(name), _type(hints[name]), _default(field, hints[name]), meaning


def _is_model(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def _link(model: str, field: str, pages: Sequence[Page]) -> str:
    for page in pages:
        anchor = page.anchor("fleet", model)
        if anchor is not None:
            return f"[{code(field)}]({page.path.name}#{anchor})"
    raise ValueError(f"no page has the fields of {model}")


def _type(hint: Any) -> str:
    base, extra = _unwrapped(hint)
    for named, word in _NAMED:
        if set(map(id, get_args(named)[1:])) <= set(map(id, extra)):
            said = _bounds(extra if word == "duration" else ())
            return f"{word}{said} s" if said[-1:].isdigit() else word + said
    if base == PolicyName:
        return "[policy](policies.md)"
    if get_args(base):
        return _compound(base, extra)
    if _is_model(base):
        return "object"
    if base is Any:
        return "JSON"
    return {int: "integer", float: "number", bool: "boolean", str: "text"}[base] + _bounds(extra)


def _compound(base: Any, extra: Sequence[Any]) -> str:
    origin, inner = get_origin(base), get_args(base)
    if origin in (Union, UnionType):
        return " or ".join(_type(each) for each in inner if each is not type(None))
    if origin is Literal:
        return ", ".join(map(code, inner))
    if origin is tuple:
        return f"list of {_plural(_type(inner[0]))}" + _length(extra)
    return f"map of {_type(inner[0])} to {_type(inner[1])}" + _length(extra)


def _plural(word: str) -> str:
    return word if "`" in word or "," in word or "]" in word else f"{word}s".replace("ys", "ies")


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        base, *extra = get_args(hint)
        return base, tuple(extra)
    return hint, ()


def _constraints(extra: Sequence[Any]) -> Iterator[Any]:
    for each in extra:
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def _bounds(extra: Sequence[Any]) -> str:
    low, high, length = "", "", ""
    for each in _constraints(extra):
        if isinstance(each, Gt):
            low = f"above {_number(each.gt)}"
        elif isinstance(each, Ge) and not low:
            low = f"from {_number(each.ge)}"
        elif isinstance(each, Le):
            high = f"to {_number(each.le)}"
        elif isinstance(each, Lt):
            high = f"below {_number(each.lt)}"
        elif isinstance(each, MaxLen):
            length = f"at most {each.max_length} characters"
    if high == "to 86400":
        high = "to 24 h"  # a duration
        low = "" if low == "from 0" else low
    said = " ".join(filter(None, (low, high, length)))
    return f", {said}" if said else ""


def _number(value: Any) -> str:
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0 and value < 2**31:
        return f"{value:,} ({value // 2**20} MiB)"
    return f"{value:,}" if isinstance(value, int) and value != 86_400 else f"{value:g}"  # noqa: PLR2004 - a day


def _length(extra: Sequence[Any]) -> str:
    for each in _constraints(extra):
        if isinstance(each, MinLen):
            return f", at least {each.min_length}"
        if isinstance(each, MaxLen):
            return f", at most {each.max_length:,}"
    return ""


def _default(field: FieldInfo, hint: Any) -> str:
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "-"
    if value is None or value == "":
        return "none"
    if isinstance(value, float) and value.is_integer() and "duration" not in _type(hint):
        return code(int(value))
    plain = TypeAdapter(hint).dump_python(value, mode="json", exclude_defaults=True)
    return code(json.dumps(plain) if not isinstance(plain, str) else plain)
