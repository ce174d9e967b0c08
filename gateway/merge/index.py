"""The repository indexes of several replicas as one. Pure.

Rules:

1. One entry per model and version, as Triton lists them, in the order in which replicas name them.
2. Its state is the best of the replicas': READY, LOADING, UNLOADING, UNAVAILABLE, none.
3. Replicas that should have the model and do not list it are *absent*; those whose index is not
   known are *unknown*. A version that a replica lists without a number is *not loaded* there.
4. Where all agree, state and reason are theirs. Where they do not, the reason names each replica
   that is not in the state of the entry.
5. An index has at most ``MAX_ENTRIES`` entries; text is cut at ``MAX_TEXT`` characters.

Source: Triton's model repository extension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_ENTRIES: Final = 20_000
MAX_NAME: Final = 1024
MAX_TEXT: Final = 1024
READY: Final = "READY"
ABSENT: Final = "absent"
UNKNOWN: Final = "unknown"
NOT_LOADED: Final = "not loaded"
_RANKS: Final = (READY, "LOADING", "UNLOADING", "UNAVAILABLE")


class ModelState(NamedTuple):
    """A model version's state on one replica."""

    state: str
    reason: str = ""


class IndexEntry(NamedTuple):
    """A model version in the index of a replica or of all."""

    name: str
    version: str
    state: str = ""
    reason: str = ""
    replicas: Mapping[str, ModelState] = {}
    """ModelState by replica, if they differ."""


class UnreadableIndexError(ValueError):
    """The answer is no index, or one above a bound."""


def entries_of(rows: Any) -> list[IndexEntry]:
    """Read the entries of one replica.

    Raises:
        UnreadableIndexError: They are no list of models, or too many.
    """
    if not isinstance(rows, list) or len(rows) > MAX_ENTRIES:
        raise UnreadableIndexError
    found = []
    for row in rows:
        if not isinstance(row, dict):
            raise UnreadableIndexError
        texts = [row.get(field, "") for field in ("name", "version", "state", "reason")]
        name, version, state, reason = texts
        if not all(isinstance(each, str) for each in texts) or not name:
            raise UnreadableIndexError
        if max(len(name), len(version), len(state)) > MAX_NAME:
            raise UnreadableIndexError
        found.append(IndexEntry(name, version, state, reason[:MAX_TEXT]))
    return found


def merged(
    indexes: Mapping[str, Iterable[IndexEntry] | None], expected: Callable[[str], Iterable[str]]
) -> list[IndexEntry]:
    """Return the entries of all replicas.

    Args:
        indexes: Entries by replica; ``None`` = not known.
        expected: Returns the replicas that should have a model.
    """
    held: dict[str, dict[str, dict[str, ModelState]]] = {}
    for replica, entries in indexes.items():
        for entry in entries or ():
            versions = held.setdefault(entry.name, {})
            versions.setdefault(entry.version, {})[replica] = ModelState(entry.state, entry.reason)
    found: list[IndexEntry] = []
    for name, versions in held.items():
        unnumbered = versions.get("", {})
        everyone = list(
            dict.fromkeys(
                (
                    *(each for each in expected(name) if each in indexes),
                    *(each for states in versions.values() for each in states),
                )
            )
        )
        for version, states in versions.items():
            if not version and len(versions) > 1:
                continue  # told by the numbered ones
            found.append(_entry(name, version, everyone, states, unnumbered, indexes))
            if len(found) >= MAX_ENTRIES:
                return found
    return found


def _entry(
    name: str,
    version: str,
    everyone: Iterable[str],
    states: Mapping[str, ModelState],
    unnumbered: Mapping[str, ModelState],
    indexes: Mapping[str, Iterable[IndexEntry] | None],
) -> IndexEntry:
    each_one: dict[str, ModelState] = {}
    for replica in everyone:
        if replica in states:
            each_one[replica] = states[replica]
        elif replica in unnumbered:
            each_one[replica] = ModelState(NOT_LOADED)
        else:
            each_one[replica] = ModelState(UNKNOWN if indexes.get(replica) is None else ABSENT)
    state = min((one.state for one in states.values()), key=_rank)
    if len(set(each_one.values())) == 1:
        (one,) = set(each_one.values())
        return IndexEntry(name, version, one.state, one.reason)
    others = [
        f"{replica} {one.state or NOT_LOADED}{f' ({one.reason})' if one.reason else ''}"
        for replica, one in each_one.items()
        if one.state != state
    ]
    reason = "; ".join(others) or next(one.reason for one in each_one.values() if one.reason)
    return IndexEntry(name, version, state, reason[:MAX_TEXT], each_one)


def _rank(state: str) -> int:
    return _RANKS.index(state) if state in _RANKS else len(_RANKS)


def rows_of(entries: Iterable[IndexEntry], *, ready: bool) -> list[dict[str, Any]]:
    """Return the entries as Triton writes them over HTTP.

    Args:
        entries: The entries.
        ready: Only those that are READY.
    """
    rows = []
    for entry in entries:
        if ready and entry.state != READY:
            continue
        row: dict[str, Any] = {"name": entry.name}
        for field in ("version", "state", "reason"):
            if value := getattr(entry, field):
                row[field] = value
        if entry.replicas:
            row["replicas"] = {
                replica: {"state": one.state, **({"reason": one.reason} if one.reason else {})}
                for replica, one in entry.replicas.items()
            }
        rows.append(row)
    return rows
