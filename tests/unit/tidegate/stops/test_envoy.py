"""Taking an Envoy out of service: what is asked, and when it counts as idle."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson
import pytest

from tidegate.stops.envoy import COUNTERS, QUIET_S, EnvoyRequests, Left, leave, requests_of


def page(active: int, total: int) -> bytes:
    """Return Envoy's counters; its admin page has a request of its own."""
    names = {
        "http.admin.downstream_rq_active": 1,
        "http.admin.downstream_rq_total": 9,
        "http.ingress.downstream_rq_active": active,
        "http.ingress.downstream_rq_total": total,
    }
    stats = [{"name": name, "value": value} for name, value in names.items()]
    return orjson.dumps({"stats": [*stats, {"histograms": {}}]})


@dataclass
class Envoy:
    """An Envoy in virtual time, whose counters a script tells: (until second, active, total)."""

    script: list[tuple[float, int, int]]
    ends_at: float = 1e9
    now: float = 0.0
    asked: list[tuple[float, str]] = field(default_factory=list)

    def ask(self, method: str, path: str) -> bytes:
        """Answer as the admin page does."""
        if self.now >= self.ends_at:
            raise ConnectionRefusedError(111, "Connection refused")
        if path != COUNTERS:
            self.asked.append((self.now, f"{method} {path}"))
            return b"OK\n"
        return page(*next(told[1:] for told in self.script if self.now < told[0]))

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def leave(self, pause_s: float = 5.0, timeout_s: float = 300.0) -> Left:
        """Take it out of service."""
        return leave(self.ask, pause_s, timeout_s, lambda: self.now, self.sleep)


def test_new_connections_are_taken_during_the_pause() -> None:
    """Load balancers learn of the stop before anything is refused."""
    envoy = Envoy([(1e9, 0, 7)])
    assert envoy.leave() == Left(ended=False, active=0)
    assert envoy.asked == [(0.0, "POST /healthcheck/fail"), (5.0, "POST /drain_listeners")]
    assert envoy.now == pytest.approx(5.0 + QUIET_S, abs=0.2)


def test_an_answer_in_flight_is_waited_for() -> None:
    """However long it takes, within the bound."""
    envoy = Envoy([(42.0, 1, 7), (1e9, 0, 7)])
    assert envoy.leave() == Left(ended=False, active=0)
    assert envoy.now >= 42.0


def test_a_request_on_an_open_connection_starts_the_quiet_time_anew() -> None:
    """Between two looks it may come and go: the total tells."""
    envoy = Envoy([(5.5, 0, 7), (6.2, 0, 8), (1e9, 0, 9)])
    envoy.leave()
    assert envoy.now >= 6.2 + QUIET_S


def test_what_does_not_end_is_counted_at_the_bound() -> None:
    """The caller says how many answers a stop now cuts."""
    envoy = Envoy([(1e9, 3, 7)])
    assert envoy.leave(timeout_s=20) == Left(ended=False, active=3)
    assert envoy.now == pytest.approx(20, abs=0.2)


def test_steady_requests_on_open_connections_do_not_hold_it_for_ever() -> None:
    """The bound holds without a quiet second, too."""
    envoy = Envoy([(second / 2, 0, second) for second in range(1, 400)])
    assert envoy.leave(timeout_s=30) == Left(ended=False, active=0)
    assert envoy.now == pytest.approx(30, abs=0.2)


def test_an_envoy_that_ends_meanwhile_is_left() -> None:
    """Another hook or its supervisor was first."""
    assert Envoy([(1e9, 2, 7)], ends_at=8.0).leave() == Left(ended=True, active=0)


def test_a_page_that_never_answered_is_an_error() -> None:
    """A wrong address must not look like a stop."""
    with pytest.raises(ConnectionRefusedError):
        Envoy([(1e9, 0, 7)], ends_at=0.0).leave()


def test_requests_to_the_admin_page_do_not_count() -> None:
    """The question itself is one."""
    assert requests_of(page(2, 5)) == EnvoyRequests(active=2, total=5)


@pytest.mark.parametrize("told", [b"", b"[]", b'{"stats": [{"name": "x"}]}', b'{"stats": 1}'])
def test_another_server_is_told_from_envoy(told: bytes) -> None:
    """One clear error in place of an idle Envoy that is none."""
    with pytest.raises(ValueError, match=r"(form|JSON|unexpected|decode|document)"):
        requests_of(told)
