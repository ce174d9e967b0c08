"""Renders chat templates (Jinja, as Hugging Face's tokenizers have them) within bounds.

Rules:

1. A template sees values, not the machine: Jinja's immutable sandbox, the filters of ``FILTERS``,
   and the globals and filters that ``transformers`` adds (``raise_exception``, ``strftime_now``,
   ``tojson``).
2. One rendering takes at most ``MAX_STEPS`` steps (turns of loops, calls), ``MAX_CPU_S`` of the
   thread's time, and ``MAX_CHARS`` of text, inner results included. Between two steps a template
   only does as much as it has code, on values of at most ``MAX_WEIGHT``: operators, literals and
   methods that make larger values are refused before they do.
3. Whatever a template raises ends its rendering, which then has no text.

One object renders one text at a time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ext_proc.control.chat_syntax import Counting, reads_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2.parser import Parser

MAX_SOURCE_CHARS: Final = 256 * 1024
MAX_STEPS: Final = 100_000
MAX_CPU_S: Final = 0.02
MAX_CHARS: Final = 2**20
MAX_WEIGHT: Final = 50_000
"""Largest value, in objects and in 64 characters of text."""
_CLOCK_STEPS: Final = 16
_MAX_NUMBER: Final = 2**63
_MAX_INDENT: Final = 16
_CHUNK: Final = 64
_CONTAINERS: Final = (list, tuple, dict)

_FILTERS: Final = """
abs attr capitalize count d default dictsort e escape first float forceescape groupby indent int
items join last length list lower map max min reject rejectattr replace reverse round safe select
selectattr sort string sum title trim truncate unique upper wordcount
"""
FILTERS: Final = frozenset(_FILTERS.split())
_TEXT_METHODS: Final = """
capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier
islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix
replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase title upper
"""
TEXT_METHODS: Final = frozenset(_TEXT_METHODS.split())
"""Others, such as ``ljust``, make texts of any size."""


class _Generation(Extension):
    """The tag ``generation``, which marks what a model wrote, and writes it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return the statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Counts what a template does (rule 2)."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, clock: Callable[[], float], today: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_Generation, loopcontrols],
            finalize=self.written,
        )
        self._clock = clock
        self._end = 0.0
        self._steps = self._chars = 0
        self.static = 0
        """Characters of the template's own text."""
        plain = {name: self.filters[name] for name in FILTERS}
        self.filters = {name: self._sized_filter(each) for name, each in plain.items()}
        self.filters |= {"tojson": self._tojson, "join": self._join, "replace": self._replace}
        self.filters["indent"] = self._indent_filter(plain["indent"])
        self.globals = {
            "dict": dict,
            "namespace": Namespace,
            "range": self.globals["range"],
            "raise_exception": _raise,
            "strftime_now": lambda form: today().strftime(form),
        }

    # --- Bounds -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a rendering."""
        self._end = self._clock() + MAX_CPU_S
        self._steps = self._chars = 0

    def step(self, chars: int = 0) -> None:
        """Count a step that may write some of the template's own text."""
        self._steps += 1
        self._chars += chars >> 6  # shared by all that write it: only its copies take room
        if self._steps > MAX_STEPS or self._chars > MAX_CHARS:
            raise SecurityError("the template does too much")
        if self._steps % _CLOCK_STEPS == 0 and self._clock() > self._end:
            raise SecurityError("the template takes too long")

    def written(self, value: Any) -> Any:
        """Count what an expression writes."""
        if isinstance(value, str):
            self._chars += len(value)
        else:
            self._chars += _CHUNK * weight(value)
        if self._chars > MAX_CHARS:
            raise SecurityError("the template writes too much")
        return value

    def sized(self, value: Any) -> Any:
        """Return a value that is not too large."""
        if isinstance(value, str):
            if len(value) > MAX_CHARS:
                raise SecurityError("a text is too long")
        elif isinstance(value, _CONTAINERS):
            weight(value)
        return value

    def turns(self, values: Iterable[Any], chars: int) -> Iterator[Any]:
        """Yield a loop's values, a step each."""
        for value in values:
            self.step(chars)
            yield value

    def concatenated(self, *values: Any) -> str:
        """Return what ``~`` makes of values."""
        return self._joined("", values)

    # --- Jinja's interface ------------------------------------------------------------------------

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Refuse methods of numbers and bytes, and of texts all but ``TEXT_METHODS``."""
        if isinstance(obj, str):
            return attr in TEXT_METHODS
        if isinstance(obj, int | float | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # noqa: ARG002 - Jinja's
        """Leave ``format`` to ``is_safe_attribute``: its widths make texts of any size."""
        return None

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something as a step."""
        owner = getattr(function, "__self__", None)
        if owner is self:  # of `Counting`; the names are added by Jinja's compiler
            return function(*args)
        self.step(self.static)
        if isinstance(owner, str):
            name = function.__name__
            if name == "join":
                return self._joined(owner, *args)
            if name == "replace":
                return self._replace(owner, *args)
        return self.sized(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator whose result may be large."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"`{operator}` is refused")
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int):
                    size = len(one) // _CHUNK if isinstance(one, str) else weight(one)
                    if other > 0 and (size + 1) * other > MAX_WEIGHT:
                        raise SecurityError("a value is too large")
                elif isinstance(one, int) and abs(one) > _MAX_NUMBER:
                    raise SecurityError("a number is too large")
        return self.sized(super().call_binop(context, operator, left, right))

    # --- Filters ----------------------------------------------------------------------------------

    def _sized_filter(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def applied(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = apply(*args, **kwargs)
            return self.turns(result, 0) if isinstance(result, Iterator) else self.sized(result)

        for name in ("jinja_pass_arg", "jinja_async_variant"):
            if hasattr(apply, name):
                setattr(applied, name, getattr(apply, name))
        return applied

    def _indent_filter(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def applied(text: str, width: int = 4, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(width, int) or width > _MAX_INDENT:
                raise SecurityError("an indentation is too wide")
            self.step()
            return self.sized(apply(text, width, *args, **kwargs))

        return applied

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        self.step()
        if indent is not None and not (isinstance(indent, int) and indent <= _MAX_INDENT):
            raise SecurityError("an indentation is too wide")
        if separators is not None and any(len(each) > _CHUNK for each in separators):
            raise SecurityError("a separator is too long")
        weight(value)
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        self.sized(text)
        return text

    def _join(self, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        self.step()
        if attribute is not None:
            values = [self.getitem(each, attribute) for each in values]
        return self._joined(d, values)

    def _joined(self, between: str, values: Iterable[Any]) -> str:
        parts: list[str] = []
        size = 0
        for value in values:
            part = value if isinstance(value, str) else str(self.sized(value))
            size += len(part) + len(between)
            if size > MAX_CHARS:
                raise SecurityError("a text is too long")
            parts.append(part)
        return str(between).join(parts)

    def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        self.step()
        text, old, new = str(text), str(old), str(new)
        if len(new) > len(old) and len(text) + text.count(old) * len(new) > MAX_CHARS:
            raise SecurityError("a text is too long")
        return text.replace(old, new, -1 if count is None else count)


def weight(value: Any) -> int:
    """Return the size of a value, with what it holds counted as often as it is written.

    Raises:
        SecurityError: It is above ``MAX_WEIGHT``, or holds a namespace.
    """
    total = 0
    waiting = [value]
    while waiting:
        each = waiting.pop()
        total += 1
        if isinstance(each, str):
            total += len(each) // _CHUNK
        elif isinstance(each, dict):
            waiting += each.keys()
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, Namespace) and total > 1:
            raise SecurityError("a namespace is part of a value")
        if total + len(waiting) > MAX_WEIGHT:
            raise SecurityError("a value is too large")
    return total


def _raise(message: str) -> None:
    raise TemplateError(message)


class SandboxedTemplate:
    """A compiled template; the module states the rules.

    Args:
        source: The template.
        tokens: Special tokens by the names that templates know, such as ``bos_token``.
        clock: CPU seconds of the thread.
        today: The local time, for templates that write the date.

    Raises:
        TemplateError: The source is no template, or uses what the sandbox has not.
        RecursionError: It nests too deeply.
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.thread_time,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(f"it has more than {MAX_SOURCE_CHARS} characters")
        self._sandbox = _Sandbox(clock, today)
        parsed = self._sandbox.parse(source)
        self.parts = reads_parts(parsed)
        self.developers = "'developer'" in source or '"developer"' in source
        self._sandbox.static = sum(len(each.data) for each in parsed.find_all(nodes.TemplateData))
        counted = Counting().visit(parsed)
        code = self._sandbox.compile(counted)
        self._template = self._sandbox.template_class.from_code(
            self._sandbox, code, self._sandbox.make_globals(None)
        )
        self._tokens = dict(tokens)

    def render(self, variables: Mapping[str, Any]) -> str | None:
        """Return the text; ``None`` if the template fails or goes beyond a bound (rule 3)."""
        self._sandbox.begin()
        written: list[str] = []
        size = 0
        try:
            for part in self._template.generate({**self._tokens, **variables}):
                size += len(part)
                if size > MAX_CHARS:
                    return None
                written.append(part)
        except Exception:  # noqa: BLE001 - rule 3: templates raise anything
            return None
        return "".join(written)
