"""The lease of a leader: renewed, given back, or lost, which ends the process."""

from __future__ import annotations

import threading

from xds_server.fleet.stored.shared import Unreachable
from xds_server.leading.keeper import Granted, Keeper, clock

WAIT_S = 60.0


class LeaseAnswers:
    """Answers renewals with these values, the last one for ever; ``None`` = no answer."""

    def __init__(self, *answers: float | None) -> None:
        self.answers = list(answers)
        self.asked = threading.Semaphore(0)
        self.revoked = 0

    def keep(self, _: Granted) -> float:
        """Renew a lease."""
        self.asked.release()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise Unreachable("no answer")
        return answer

    def revoke(self, _: Granted) -> None:
        """End a lease."""
        self.revoked += 1
        if self.answers[0] is None:
            raise Unreachable("no answer")


def keeper(leases: LeaseAnswers, ttl_s: float, asked: float | None = None):
    """Return a running keeper, and what is set when it ends its process."""
    ended = threading.Event()
    made = Keeper(leases, Granted(1, ttl_s), clock() if asked is None else asked, ended.set)
    made.start()
    return made, ended


def test_a_lease_is_renewed_until_the_server_stops() -> None:
    """Then it is given back, so that another one leads at once."""
    leases = LeaseAnswers(600.0)
    made, ended = keeper(leases, 600.0, clock() - 300.0)  # its renewal is due
    assert leases.asked.acquire(timeout=WAIT_S)
    assert made.holds()
    made.stop()
    assert leases.revoked == 1
    assert not ended.is_set()


def test_a_renewal_without_answer_is_repeated() -> None:
    """By the next member of etcd."""
    leases = LeaseAnswers(None, 600.0)
    made, ended = keeper(leases, 600.0, clock() - 300.0)
    assert leases.asked.acquire(timeout=WAIT_S)
    assert leases.asked.acquire(timeout=WAIT_S)
    made.stop()
    assert not ended.is_set()


def test_a_lease_that_is_not_renewed_ends_the_process() -> None:
    """Before it ends in etcd, by this server's clock alone."""
    made, ended = keeper(LeaseAnswers(None), 1.0)
    assert ended.wait(WAIT_S)
    assert not made.holds()
    made.stop()


def test_a_lease_that_has_ended_ends_the_process() -> None:
    """Etcd says so."""
    made, ended = keeper(LeaseAnswers(0.0), 600.0, clock() - 300.0)
    assert ended.wait(WAIT_S)
    made.stop()


def test_a_leader_that_is_replaced_ends() -> None:
    """The head is another's."""
    made, ended = keeper(LeaseAnswers(600.0), 600.0)
    made.deposed()
    assert ended.is_set()
    made.stop()
