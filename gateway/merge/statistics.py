"""Statistics of replicas, and their sums. Pure.

Rules:

1. A row is one model's version on one replica. Counts are whole numbers from 0 to 2^64-1; an answer
   with anything else is refused as a whole.
2. Counts add up, in batches by their size; of times of last use the latest counts. Memory is that
   of the replicas that answer now.
3. A sum never falls while the gateway lives: what a replica had counted before it restarted, left
   or stopped to answer stays in it. A counter that falls tells of a restart or of another load.
4. At most ``MAX_HELD`` rows are remembered; the least recently asked models go first.

Source: Triton's statistics extension.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ext_proc.routing.values.pool import EndpointKey

MAX_ROWS: Final = 10_000
"""Most rows of one replica."""
MAX_HELD: Final = 50_000
MAX_LEAVES: Final = 4_096
MAX_DEPTH: Final = 5
MAX_NAME: Final = 1024
MAX_COUNT: Final = 2**64 - 1
_NAMES: Final = frozenset({"name", "version"})
_NUMBER: Final = re.compile(r"[0-9]{1,20}")

Row: TypeAlias = "dict[str, Any]"
"""``name``, ``version`` and nested counts."""


class ModelKey(NamedTuple):
    """One version of a model."""

    name: str
    version: str


class StatisticsError(ValueError):
    """The answer is no statistics, or above a bound."""


def rows_of(answer: Any) -> list[Row]:
    """Read the rows of one replica's answer.

    Raises:
        StatisticsError: It is no answer of Triton's.
    """
    rows = answer.get("model_stats") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise StatisticsError
    found = []
    for row in rows:
        if not isinstance(row, dict):
            raise StatisticsError
        name, version = row.get("name"), row.get("version", "")
        if not isinstance(name, str) or not isinstance(version, str):
            raise StatisticsError
        if not name or len(name) > MAX_NAME or len(version) > MAX_NAME:
            raise StatisticsError
        left = [MAX_LEAVES]
        counts = {
            key: _read(each, _SHAPE.get(key), 1, left)
            for key, each in row.items()
            if key not in _NAMES
        }
        found.append({"name": name, "version": version, **counts})
    return found


_SPAN: Final = {"count": int, "ns": int}
_SHAPE: Final[dict[str, Any]] = {
    "last_inference": int,
    "inference_count": int,
    "execution_count": int,
    "inference_stats": {"*": _SPAN},
    "response_stats": {"*": {"*": _SPAN}},
    "batch_stats": [{"batch_size": int, "*": _SPAN}],
    "memory_usage": [{"type": str, "id": int, "byte_size": int}],
}
"""What is known of a row; ``*`` stands for all other names."""


def _read(value: Any, shape: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth > MAX_DEPTH:
        raise StatisticsError
    if isinstance(value, dict) and (shape is None or isinstance(shape, dict)):
        if not all(isinstance(key, str) and len(key) <= MAX_NAME for key in value):
            raise StatisticsError
        of = shape or {}
        return {
            key: _read(each, of.get(key, of.get("*")), depth + 1, left)
            for key, each in value.items()
        }
    if isinstance(value, list) and (shape is None or isinstance(shape, list)):
        if not all(isinstance(each, dict) for each in value):
            raise StatisticsError
        return [_read(each, shape and shape[0], depth + 1, left) for each in value]
    if isinstance(value, str) and (shape is None or shape is str) and len(value) <= MAX_NAME:
        return value
    if isinstance(value, str) and shape is int and _NUMBER.fullmatch(value):
        value = int(value)  # protobuf's JSON has large numbers as text
    if (shape is None or shape is int) and type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    raise StatisticsError


def added(one: Any, other: Any, key: str = "") -> Any:
    """Return the sum of two rows, or of parts of them; neither is changed."""
    if isinstance(one, dict) and isinstance(other, dict):
        total = dict(one)
        for name, value in other.items():
            total[name] = added(one[name], value, name) if name in one else value
        return total
    if isinstance(one, list) and isinstance(other, list):
        by_key: dict[Any, Any] = {_place(each): each for each in one}
        for each in other:
            place = _place(each)
            by_key[place] = added(by_key[place], each) if place in by_key else each
        return list(by_key.values())
    if isinstance(one, int) and isinstance(other, int):
        if key in _IDENTITIES:
            return one
        return max(one, other) if key == "last_inference" else min(one + other, MAX_COUNT)
    return one


_IDENTITIES: Final = frozenset({"batch_size", "id"})


def _place(entry: Mapping[str, Any]) -> Any:
    if "batch_size" in entry:
        return entry["batch_size"]
    return str(entry.get("type")), entry.get("id", 0)


class _Held:
    """The counts of one model version on one replica."""

    __slots__ = ("base", "last", "pools")

    def __init__(self) -> None:
        self.base: Row | None = None
        """Sum of what was counted before the last restart."""
        self.last: Row = {}
        self.pools: frozenset[str] = frozenset()

    @property
    def counts(self) -> Row:
        """All counts, without memory."""
        last = {key: each for key, each in self.last.items() if key != "memory_usage"}
        return last if self.base is None else added(last, self.base)


class StatisticsBook:
    """What replicas have counted; see the module's rules."""

    def __init__(self) -> None:
        self._known: OrderedDict[ModelKey, dict[EndpointKey, _Held]] = OrderedDict()
        self.rows = 0
        """Remembered rows."""

    def take(self, replica: EndpointKey, pools: frozenset[str], rows: Iterable[Row]) -> None:
        """Remember what a replica says.

        Args:
            replica: The replica.
            pools: The pools that it is in.
            rows: Result of ``rows_of``.
        """
        for row in rows:
            key = ModelKey(row["name"], row["version"])
            holders = self._known.setdefault(key, {})
            self._known.move_to_end(key)
            held = holders.get(replica)
            if held is None:
                held = holders[replica] = _Held()
                self.rows += 1
            elif _fell(held.last, row):
                held.base = held.counts
            held.last, held.pools = row, pools
        while self.rows > MAX_HELD:
            _, gone = self._known.popitem(last=False)
            self.rows -= len(gone)

    def sums(
        self,
        said: Mapping[EndpointKey, Iterable[Row]],
        counts: Callable[[EndpointKey, frozenset[str]], bool],
    ) -> list[Row]:
        """Return the sums of the model versions that a replica has named just now.

        Args:
            said: Rows by replica, of those that answered; they were taken before.
            counts: Whether a remembered replica, with the pools that it was in, belongs to the sum.
        """
        memory: dict[ModelKey, list[Any]] = {}
        for rows in said.values():
            for row in rows:
                key = ModelKey(row["name"], row["version"])
                have = memory.setdefault(key, [])
                memory[key] = added(have, row.get("memory_usage", []))
        found = []
        for key, usage in memory.items():
            total: Row = {"name": key.name, "version": key.version}
            for replica, held in self._known.get(key, {}).items():
                if counts(replica, held.pools):
                    total = added(total, held.counts)
            found.append({**total, "memory_usage": usage})
        return found


def _fell(before: Row, now: Row) -> bool:
    return any(_count(now, path) < _count(before, path) for path in _COUNTERS)


_COUNTERS: Final = (
    ("inference_count",),
    ("execution_count",),
    ("inference_stats", "success", "count"),
    ("inference_stats", "fail", "count"),
    ("inference_stats", "success", "ns"),
)


def _count(row: Any, path: tuple[str, ...]) -> int:
    for name in path:
        row = row.get(name, 0) if isinstance(row, dict) else 0
    return row if isinstance(row, int) else 0
