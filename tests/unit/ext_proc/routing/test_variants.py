"""Variants of a killing request, against a real router among other clients' requests.

The attacker sends the next variant as soon as the one before has failed and the log has told it.
The others send all the time, some of them requests that look like the killer.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import count

import pytest

from ext_proc.blame.alike import allowance
from ext_proc.blame.deaths import WINDOW_S
from support.deadly import DeadlyFleet, innocent
from support.tries import tries

ATTACKER = "192.0.2.66"
CLIENTS = [f"198.51.100.{number}" for number in range(8)]
SKELETON = b'{"inputs":[{"name":"image","datatype":"FP32","shape":[%d],"data":[%s]}],"id":"%s"}'
BEFORE_S, ATTACK_S = 20.0, 30.0
STEP_S = 0.1
EDITS = 5


def killing(rng: random.Random) -> bytes:
    """Return a killing body that no earlier one is alike."""
    return SKELETON % (2**40 + rng.getrandbits(30), b"0.5", b"%032x" % rng.getrandbits(128))


def looking_like_it(rng: random.Random) -> bytes:
    """Return a body of the same form with other values."""
    values = b",".join(b"%.3f" % rng.random() for _ in range(8))
    return SKELETON % (8, values, b"%032x" % rng.getrandbits(128))


def edited(body: bytes, rng: random.Random, edits: int) -> bytes:
    """Return a body with so many bytes changed, inserted or removed."""
    made = bytearray(body)
    for _ in range(edits):
        at, what = rng.randrange(len(made)), rng.randrange(3)
        if what == 0:
            made[at] = rng.randrange(256)
        elif what == 1:
            made.insert(at, rng.randrange(256))
        else:
            del made[at]
    return bytes(made)


class Siege:
    """A fleet, its clients and an attacker."""

    def __init__(self, seed: int, replicas: int, *, retry_read: int = 1, read: bool = True) -> None:
        self.rng = random.Random(seed)
        self.fleet = DeadlyFleet(
            replicas, seed, retry_read=retry_read, killer_read=read, log_s=0.0, repeats_unread=False
        )
        self.deadly = self.fleet.deadly
        self.numbers = count()
        self.senders: dict[bytes, str | None] = {}
        self.sent = 0

    def others(self, seconds: float) -> None:
        """Let the other clients send for a time."""
        for _ in range(round(seconds / STEP_S)):
            client, rng = self.rng.choice(CLIENTS), self.rng
            look = rng.random() < 0.3
            body = looking_like_it(rng) if look else innocent(next(self.numbers))
            self.senders[body] = client
            self.fleet.send(body, client)
            self.fleet.pass_time(STEP_S)

    def attack(self, body: bytes, client: str | None = ATTACKER) -> None:
        """Send a killing body and wait until its sender knows what became of it."""
        self.deadly.add(body)
        self.senders[body] = client
        self.sent += 1
        self.fleet.send(body, client)
        while any(each.body == body for each in self.fleet.running):
            self.others(STEP_S)
        self.others(2 * STEP_S)

    def killed(self) -> set[str]:
        """Return the replicas that requests killed within the window."""
        fleet = self.fleet
        return {each for at, each in fleet.died if fleet.now - at < WINDOW_S}

    def hurt(self) -> list[tuple[bytes, str | None]]:
        """Return requests of others that had to wait, but for clients that two deaths met.

        Such a client cannot be told from the attacker; few of them are confined.
        """
        met = Counter[str | None]()
        for body, times in self.fleet.broken.items():
            met[self.senders[body]] += times
        return [
            (body, client)
            for body, client in self.fleet.held_up
            if body not in self.deadly and met[client] < 2
        ]


SEEDS = range(tries(2))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("retry_read", [0, 1])
@pytest.mark.parametrize("replicas", [3, 5])
def test_near_copies_of_a_killer_kill_two_replicas_whoever_sends_them(seed, retry_read, replicas):
    """Each differs from one before by a few bytes; each comes from another client."""
    siege = Siege(seed, replicas, retry_read=retry_read)
    siege.others(BEFORE_S)
    body = killing(siege.rng)
    while siege.fleet.now < 100.0 + BEFORE_S + ATTACK_S:
        siege.attack(body, f"203.0.113.{siege.sent}")
        died = [each for each in siege.deadly if siege.fleet.broken[each]]
        body = edited(siege.rng.choice(sorted(died)), siege.rng, siege.rng.randint(1, EDITS))
    assert siege.sent > 20
    assert len(siege.killed()) <= 2
    assert not siege.hurt()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("retry_read", [0, 1])
@pytest.mark.parametrize("read", [True, False])
def test_one_callers_killers_kill_two_replicas_whatever_they_are(seed, retry_read, read):
    """They have nothing in common but their caller; unread ones are not repeated either."""
    siege = Siege(seed, 3, retry_read=retry_read, read=read)
    siege.others(BEFORE_S)
    while siege.fleet.now < 100.0 + BEFORE_S + ATTACK_S:
        siege.attack(killing(siege.rng))
    assert siege.sent > 20
    assert len(siege.killed()) <= 2
    assert not siege.hurt()


def test_the_edits_of_this_test_are_within_the_allowance():
    """A killer has so many bytes that it is alike what differs by these edits."""
    assert allowance(len(killing(random.Random(1))) - EDITS) >= EDITS
