"""Tables of replays beside the simulator, as Markdown. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bench.peers.contenders import TIDEGATE
from bench.report.paired import by_seed, ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MEAN_AIM: Final = 1.05
"""Most that the mean may be, as a multiple of an oracle's."""
P99_AIM: Final = 1.10
_ORACLES: Final = ("oracle", "oracle-exact")
_AGAINST: Final = ("vs `oracle`", "vs `oracle-exact`", "vs simulated `auto`")
_P99: Final = ("p99, without", "with", "ratio")


def change(ours: Mapping[int, float], theirs: Mapping[int, float], aim: float | None = None) -> str:
    """Return the paired change in percent with its interval; bold if it misses ``aim``."""
    found = ratio(ours, theirs)
    if found is None:
        return "-"
    text = f"{100 * (found.mean - 1):+.1f} %"
    if found.low is not None and found.high is not None:
        text += f" [{100 * (found.low - 1):+.1f}, {100 * (found.high - 1):+.1f}]"
    return f"**{text}**" if aim is not None and found.mean > aim else text


def times_to_first_token(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table of the fleet beside the oracles and the simulated ``auto``."""
    lines = [
        _row(
            *("traffic, load", "seeds", "mean", *_AGAINST, "vs the same choices"),
            *("p99", *_AGAINST, "equal", "within 50 ms"),
        ),
        "|" + "---|" * 13,
    ]
    for (traffic, load), group in _groups(rows, "").items():
        cells = [f"{traffic}, {load:.0%}", f"{len(group)}"]
        for key, aim in (("mean", MEAN_AIM), ("p99", P99_AIM)):
            ours = by_seed(group, "ttft", "fleet", key)
            cells.append(f"{sum(ours.values()) / len(ours):.3g} s")
            cells += [change(ours, by_seed(group, "ttft", each, key), aim) for each in _ORACLES]
            cells.append(change(ours, by_seed(group, "ttft", "auto", key)))
            if key == "mean":
                cells.append(change(ours, by_seed(group, "followed", key)))
        cells += [_share(group, "equal"), _share(group, "close")]
        lines.append(_row(*cells))
    return "\n".join(lines)


def restarts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of fleets of which replicas restarted, beside fleets that did not."""
    lines = [
        _row("traffic, load", "seeds", "lost", "policy", "mean, without", "with", "ratio", *_P99),
        "|" + "---|" * 10,
    ]
    calm = _groups(rows, "without")
    for (traffic, load), group in _groups(rows, "with").items():
        before = calm.get((traffic, load), [])
        lost = sum(int(row["lost"]) for row in group)
        for policy in group[0]["ttft"]:
            head = [f"{traffic}, {load:.0%}", f"{len(group)}", f"{lost}", policy]
            cells = []
            for key in ("mean", "p99"):
                after = by_seed(group, "ttft", policy, key)
                calmly = by_seed(before, "ttft", policy, key)
                cells += [_mean(calmly), _mean(after), _multiple(after, calmly)]
            lines.append(_row(*head, *cells))
    return "\n".join(lines)


def beside_peers(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of other routers beside Tidegate on the same requests."""
    heads = (
        "traffic, load",
        "router",
        "seeds",
        "lost",
        "mean",
        "vs Tidegate",
        "p99",
        "vs Tidegate",
    )
    lines = [_row(*heads), "|" + "---|" * len(heads)]
    ours = _groups(rows, "")
    for name in dict.fromkeys(row["contender"] for row in rows if row["contender"] != TIDEGATE):
        for (traffic, load), group in _groups(rows, "", name).items():
            lost = sum(int(row["lost"]) for row in group)
            cells = [f"{traffic}, {load:.0%}", name, f"{len(group)}", f"{lost}"]
            for key in ("mean", "p99"):
                theirs = by_seed(group, "ttft", "fleet", key)
                known = by_seed(ours.get((traffic, load), []), "ttft", "fleet", key)
                cells += [_mean(theirs), change(theirs, known)]
            lines.append(_row(*cells))
    return "\n".join(lines)


def without_hop(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the fleet's choices beside the oracles, without what the stack adds.

    *busy* is the most that the machine's CPUs were in a run. Runs in which a request was lost have
    no such times.
    """
    lines = [
        _row(
            *("traffic, load", "seeds", "lost", "busy", "mean: stack adds", *_AGAINST[:2]),
            *("p99: stack adds", *_AGAINST[:2]),
        ),
        "|" + "---|" * 10,
    ]
    for (traffic, load), group in _groups(rows, "").items():
        lost = sum(int(row["lost"]) for row in group)
        busy = max((row.get("machine_busy", 0.0) for row in group), default=0.0)
        cells = [f"{traffic}, {load:.0%}", f"{len(group)}", f"{lost}", f"{busy:.0%}"]
        for key, aim in (("mean", MEAN_AIM), ("p99", P99_AIM)):
            choices = by_seed(group, "followed", key)
            cells.append(change(by_seed(group, "ttft", "fleet", key), choices))
            cells += [change(choices, by_seed(group, "ttft", each, key), aim) for each in _ORACLES]
        lines.append(_row(*cells))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _groups(
    rows: Iterable[Mapping[str, Any]], restart: str, contender: str = TIDEGATE
) -> dict[tuple[str, float], list[Mapping[str, Any]]]:
    found: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for row in rows:
        if (row["restart"], row["contender"]) == (restart, contender):
            found.setdefault((row["traffic"], row["load"]), []).append(row)
    return dict(sorted(found.items()))


def _mean(values: Mapping[int, float]) -> str:
    return f"{sum(values.values()) / len(values):.3g} s" if values else "-"


def _multiple(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    found = ratio(ours, theirs)
    if found is None:
        return "-"
    text = f"{found.mean:.2f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:.2f}, {found.high:.2f}]"
    return text


def _share(group: Sequence[Mapping[str, Any]], key: str) -> str:
    compared = [row["agreement"] for row in group if "agreement" in row]
    count = sum(each["decisions"] for each in compared)
    if not count:
        return "-"
    return f"{100 * sum(each[key] * each['decisions'] for each in compared) / count:.1f} %"
