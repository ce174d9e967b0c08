"""Output of commands: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PIPED_WIDTH: Final = 100
"""Width in columns if the output is a file or a pipe."""
UNKNOWN: Final = "-"


class Output(StrEnum):
    """How a reading command prints."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def console(*, stderr: bool = False) -> Console:
    """Return a console for stdout or stderr; it uses colours only on a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream,
        width=None if stream.isatty() else PIPED_WIDTH,
        highlight=False,
        soft_wrap=False,
    )


def command_line() -> tuple[str, ...]:
    """Return how the shell that started this calls this installation's ``tidegate``."""
    script = Path(sys.executable).with_name("tidegate")
    if not script.is_file():
        return (sys.executable, "-P", "-m", "tidegate")
    found = shutil.which("tidegate")
    on_path = found is not None and Path(found).is_absolute() and Path(found).samefile(script)
    return ("tidegate",) if on_path else (str(script),)


def cell(value: object) -> str:
    """Format a value for a table; an unknown value is ``-``, never 0."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(item) for item in value) or UNKNOWN
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> Table:
    """Build a borderless table; columns whose name starts with ``#`` are right-aligned."""
    built = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        built.add_column(
            column.lstrip("#"),
            justify="right" if column.startswith("#") else "left",
            header_style="bold",
            overflow="fold",
        )
    for row in rows:
        built.add_row(*(Text(cell(value)) for value in row))
    return built


def emit(data: Any, tables: Iterable[Table | str | Text], output: Output) -> None:
    """Print ``data`` as JSON or YAML, or ``tables`` if the format is ``table``."""
    if output is Output.JSON:
        import json

        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    elif output is Output.YAML:
        import yaml

        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    else:
        out = console()
        for index, part in enumerate(tables):
            if index:
                out.print()
            out.print(part)


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show a spinner with ``text`` during the block; on a terminal only."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield
        return
    with out.status(text):
        yield
