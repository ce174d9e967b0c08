"""Public traces as workloads: Mooncake's JSON lines and Azure's CSV.

Mooncake (FAST'25): ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` with one
id per 512 tokens; the last block is usually partial and then not reusable. Timestamps are on a
grid of about 3 s, so the workload is *slotted*.

Azure (Splitwise, ISCA 2024): ``TIMESTAMP,ContextTokens,GeneratedTokens``. It contains no
prefixes, so every block is unique and caches never hit.
"""

from __future__ import annotations

import csv
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from bench.simulate.workload import (
    BLOCK_TOKENS,
    MAX_JOBS,
    MAX_TOKENS,
    Job,
    Workload,
    block_id,
    with_sessions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_LINE: Final = 1_000_000
"""Maximum length of a line, characters."""
_AZURE_COLUMNS: Final = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


class TraceError(Exception):
    """An invalid trace; the message names the file, the line and the problem."""


def read_trace(path: Path) -> Workload:
    """Read a trace; the file extension determines the format (``.jsonl`` Mooncake, ``.csv`` Azure).

    Raises:
        TraceError: The file cannot be read or a line violates the format.
    """
    readers = {".jsonl": _mooncake, ".csv": _azure}
    reader = readers.get(path.suffix)
    if reader is None:
        raise TraceError(f"{path}: a trace ends with .jsonl (Mooncake) or .csv (Azure)")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            jobs = list(reader(path, lines))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not UTF-8 text") from None
    if not jobs:
        raise TraceError(f"{path}: no requests in it")
    slotted = path.suffix == ".jsonl"
    return Workload(path.stem, with_sessions(jobs) if slotted else jobs, slotted)


def _mooncake(path: Path, lines: Iterable[str]) -> Iterable[Job]:
    index, last = 0, 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        _check_size(where, index, line)
        try:
            row: Any = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{where}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise TraceError(f"{where}: not a JSON object")
        at = _number(where, row, "timestamp", 10**12) / 1000.0
        length = _number(where, row, "input_length", MAX_TOKENS)
        output = _number(where, row, "output_length", MAX_TOKENS)
        ids = row.get("hash_ids")
        if not isinstance(ids, list) or not all(type(each) is int for each in ids):
            raise TraceError(f"{where}: hash_ids must be a list of integers")
        if at < last:
            raise TraceError(f"{where}: timestamp {at:g} s is before the line above")
        full = length // BLOCK_TOKENS
        if len(ids) < full:
            raise TraceError(
                f"{where}: {length} tokens need {full} hash_ids of {BLOCK_TOKENS} tokens,"
                f" not {len(ids)}"
            )
        blocks = tuple([block_id(each) for each in ids[:full]])
        yield Job(index, at, max(1, length), max(1, output), blocks)
        index, last = index + 1, at


def _azure(path: Path, lines: Iterable[str]) -> Iterable[Job]:
    rows = csv.reader(lines)
    if next(rows, None) != _AZURE_COLUMNS:
        raise TraceError(f"{path}:1: the columns must be {','.join(_AZURE_COLUMNS)}")
    start: datetime | None = None
    index, last, blocks_used = 0, 0.0, 0
    try:
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if not row:
                continue
            _check_size(where, index, "".join(row))
            if len(row) != len(_AZURE_COLUMNS):
                raise TraceError(f"{where}: {len(row)} columns instead of {len(_AZURE_COLUMNS)}")
            try:
                # Seven fractional digits: fromisoformat drops the last (strptime's %f fails).
                stamp = datetime.fromisoformat(row[0])
                length, output = int(row[1]), int(row[2])
            except ValueError as error:
                raise TraceError(f"{where}: {error}") from None
            if not (0 <= length <= MAX_TOKENS and 0 <= output <= MAX_TOKENS):
                raise TraceError(f"{where}: token counts must lie in 0..{MAX_TOKENS}")
            start = start or stamp
            if (stamp.tzinfo is None) != (start.tzinfo is None):
                raise TraceError(f"{where}: time zones here and in the first line differ")
            at = max(last, (stamp - start).total_seconds())
            full = length // BLOCK_TOKENS
            blocks = tuple([block_id(blocks_used + each) for each in range(full)])
            blocks_used += full
            yield Job(index, at, max(1, length), max(1, output), blocks, f"s{index}")
            index, last = index + 1, at
    except csv.Error as error:
        raise TraceError(f"{path}:{rows.line_num}: {error}") from None


def _check_size(where: str, index: int, line: str) -> None:
    if index >= MAX_JOBS:
        raise TraceError(f"{where}: more than {MAX_JOBS} requests")
    if len(line) > MAX_LINE:
        raise TraceError(f"{where}: longer than {MAX_LINE} characters")


def _number(where: str, row: dict[str, Any], name: str, most: int) -> int:
    value = row.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise TraceError(f"{where}: {name} must be an integer in 0..{most}, not {value!r}")
    return value
