"""Control servers that hand over; ``python -m support.chaos.control`` runs all points."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from support.chaos.control.values import Point
from support.chaos.control.world import play
from support.etcd_port import SmallEtcd
from support.tries import tries
from xds_server.applications.loading.keeper import LoadKeeper
from xds_server.control.journal import Journal
from xds_server.fleet.store import StoreError, StoreSilent
from xds_server.fleet.stored.epochs import HistoryMark, Tenure
from xds_server.leading.seen import SeenFile

POINTS = [
    *(Point("change", "kill", number) for number in (4, 25)),
    *(Point("drain", "cut", number) for number in (1, 5)),
    Point("drain", "stop", 5),
    *(Point("canary", "kill", number) for number in (5, 11)),
    Point("canary", "full", 13),
    *(Point("load", "kill", number) for number in (6, 14)),
    Point("change", "lose-reply", 5),
    Point("canary", "end", 4),
    Point("load", "kill-twice", 7),
    Point("restore", "full", 3),
]


@pytest.mark.parametrize("seed", range(tries(1)))
@pytest.mark.parametrize("at", POINTS, ids=lambda at: f"{at.script}-{at.fault}-{at.number}")
def test_a_follower_leads_to_the_same_end(at, seed):
    """Whatever happens to the leader, in the middle of what an operator wants."""
    play(at, seed=seed + at.number)


_answer = SmallEtcd._Txn


def unfenced(self: SmallEtcd, asked: Any) -> Any:
    """Change the head whatever it is."""
    key = asked.success[0].request_put.key
    if key.endswith(b"head"):
        asked.compare[0].mod_revision = self._keys.get(key, (b"", 0, 0))[1]
    return _answer(self, asked)


def too_long(self: Tenure, asked: float, ttl_s: float) -> None:
    """Hold a lease that has ended in the store."""
    self.renew_at, self.ends = asked + ttl_s / 4, asked + 2 * ttl_s


async def impatient(self: Journal, state: Any, **_: bool) -> None:
    """Take what is not stored for stored."""
    try:
        await self._write_held()
        await asyncio.to_thread(self._store.append, state)
    except StoreSilent as error:
        raise StoreError(str(error)) from None


async def forgotten(_: LoadKeeper) -> None:
    """Do not take up what was open."""


def nothing_read(_: SeenFile) -> HistoryMark:
    """Forget what was read before the start."""
    return HistoryMark()


PLANTED = {
    "a lost fence": (SmallEtcd, "_Txn", unfenced, Point("drain", "stop", 7)),
    "a lease without margin": (Tenure, "renewed", too_long, Point("change", "cut", 1)),
    "relief that no follower has": (Journal, "_append", impatient, Point("drain", "cut", 1)),
    "an operation that is forgotten": (LoadKeeper, "start", forgotten, Point("load", "kill", 9)),
    "a start that forgets what was read": (
        SeenFile,
        "read",
        nothing_read,
        Point("restore", "kill", 3),
    ),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_runs_find(defect):
    """The defects that the rules prevent."""
    owner, name, wrong, at = PLANTED[defect]
    with patch.object(owner, name, wrong), pytest.raises(AssertionError):
        play(at, seed=at.number)
