"""Pools out of a fleet file, without a control server."""

from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from support.fleets import endpoint, pool
from tidegate.picker.feed import FileFeed

T0 = 1_000.0


class Followed:
    """A feed and the pools that it put in force."""

    def __init__(self, path, folder=None):
        self.path = path
        self.now = T0
        self.taken = []
        self.feed = FileFeed(
            path, folder or path.parent, self.taken.append, seed=7, wall_clock=lambda: self.now
        )

    async def write(self, text):
        self.path.write_text(text if isinstance(text, str) else json.dumps(text))
        for _ in range(2):
            await self.feed.look()

    @property
    def endpoints(self):
        """The endpoints in force, by id."""
        return {each.key.id: each for each in self.taken[-1]["llm"].endpoints}


@pytest.fixture
def followed(tmp_path):
    """A feed of a file that does not exist yet."""
    return Followed(tmp_path / "fleet.yaml")


def fleet(*numbers, **changes):
    """Return a fleet with these endpoints."""
    return {
        "pools": [
            pool(
                variants=[{"name": "stable"}],
                endpoints=[endpoint(each, **changes) for each in numbers],
            )
        ]
    }


async def test_a_file_becomes_pools(followed):
    """Settings, replicas and the seed are those of the control server's message."""
    await followed.write(fleet(1, 2))
    assert followed.feed.ready.is_set()
    (pools,) = followed.taken
    assert set(pools) == {"llm"}
    assert pools["llm"].seed == 7
    assert pools["llm"].default_for_http
    assert set(followed.endpoints) == {"r1", "r2"}
    assert all(each.joined_unix_s is None for each in pools["llm"].endpoints)


async def test_an_edit_is_followed(followed):
    """A new replica has joined then; others keep their identity."""
    await followed.write(fleet(1, 2))
    before = followed.endpoints
    followed.now += 60
    await followed.write(fleet(1, 3))
    assert set(followed.endpoints) == {"r1", "r3"}
    assert followed.endpoints["r1"].key == before["r1"].key
    assert followed.endpoints["r3"].joined_unix_s == T0 + 60


async def test_another_address_is_another_incarnation(followed, tmp_path):
    """And two processes agree on it, whatever each of them saw before."""
    await followed.write(fleet(1))
    before = followed.endpoints["r1"].key
    await followed.write(fleet(1, http="127.0.0.1:7777"))
    moved = followed.endpoints["r1"].key
    assert (moved.id, moved != before) == (before.id, True)
    other = Followed(tmp_path / "other.yaml")
    await other.write(fleet(1, http="127.0.0.1:7777"))
    assert other.endpoints["r1"].key == moved


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("pools: [", "fleet_file_refused"),
        ({"pools": []}, "fleet_file_refused"),
        ({"pools": [{"name": "X"}]}, "fleet_file_refused"),
        (None, "fleet_file_unreadable"),
    ],
)
async def test_a_bad_edit_keeps_the_pools_in_force(followed, text, event):
    """There is one error, the state shows it, and a good file ends it."""
    await followed.write(fleet(1))
    with capture_logs() as logged:
        if text is None:
            followed.path.unlink()
        else:
            followed.path.write_text(text if isinstance(text, str) else json.dumps(text))
        for _ in range(6):
            await followed.feed.look()
    assert [each["event"] for each in logged] == [event]
    assert len(followed.taken) == 1
    assert followed.feed.state()["refused"]
    await followed.write(fleet(1, 2))
    assert followed.feed.state()["refused"] is None
    assert set(followed.endpoints) == {"r1", "r2"}


async def test_pools_that_are_not_taken_change_nothing(followed):
    """Whatever is wrong with them, the feed goes on."""

    def refuse(_):
        raise LookupError

    followed.feed._take = refuse
    with capture_logs() as logged:
        await followed.write(fleet(1))
    assert [each["error"] for each in logged] == ["LookupError"]
    assert not followed.feed.ready.is_set()


async def test_it_follows_until_cancelled(followed):
    """The watch runs by itself."""
    followed.path.write_text(json.dumps(fleet(1)))
    running = asyncio.create_task(followed.feed.run())
    try:
        async with asyncio.timeout(60):
            await followed.feed.ready.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert followed.taken


async def test_a_standby_gets_no_requests(followed):
    """Nobody brings it in; an edit that makes it a usual one ramps it up."""
    with_standby = fleet(1, 2)
    with_standby["pools"][0]["endpoints"][0]["standby"] = True
    await followed.write(with_standby)
    assert followed.endpoints["r1"].draining
    followed.now += 60
    await followed.write(fleet(1, 2))
    assert not followed.endpoints["r1"].draining
    assert followed.endpoints["r1"].joined_unix_s == T0 + 60
