"""Found replicas and their sources as the admin API shows them."""

from __future__ import annotations

from typing import Any

from support.fleets import endpoint, fleet, pool
from xds_server.admin.found import MAX_SHOWN, held, left_out, replicas, sources
from xds_server.applications.discovery.membership import PoolMembership, SourceState
from xds_server.applications.discovery.replica import Hold
from xds_server.fleet.members.members import Member, Members
from xds_server.fleet.members.origins import origins_of

FILE = "file /f"
WRITTEN = fleet(
    pool(
        variants=[{"name": "stable"}, {"name": "canary"}],
        endpoints=[endpoint(1)],
        endpoints_from=[{"file": "/f", "protocols": ["http"], "capacity": 2}],
        drained=["f3"],
    )
)


class Found:
    """What a membership says."""

    def __init__(self, hold: Hold | None = None, unfit: tuple[str, ...] = ()) -> None:
        self._pool = PoolMembership("llm", {"active": 1}, hold, unfit)

    def sources(self) -> list[SourceState]:
        """Return two sources, one of which never answered."""
        return [
            SourceState("llm", FILE, 3, 1.5, ""),
            SourceState("llm", "dns t.example:1/", None, None, "no answer"),
        ]

    def pools(self) -> list[PoolMembership]:
        """Return one pool."""
        return [self._pool]

    def confirm(self, pool: str) -> int:
        """Never called."""
        raise AssertionError(pool)

    def now(self) -> float:
        """Return the time."""
        return 100.0


def member(number: int, http: str | None = None, **more: Any) -> Member:
    """Return a member of the file."""
    origin = origins_of(WRITTEN.pools[0])[FILE]
    told = {name: more.pop(name) for name in ("variant", "zone") if name in more}
    spec = origin.replica(f"f{number}", http or f"10.0.0.{number}:8000", None, **told)
    return Member(spec, FILE, f"f{number}", number, 0, **more)


def test_members_are_shown_as_they_are_published() -> None:
    """With what an operator drained, and each id once; what is left out is not shown."""
    members = Members(
        {
            "llm": (
                member(2, variant="canary", zone="z"),
                member(3, held=True),
                member(3),
                member(4, http="127.0.0.1:8010"),
            )
        }
    )
    published = members.published(WRITTEN).fleet
    shown = list(replicas(published, members))
    assert [each.id for each in shown] == ["f2", "f3"]
    first, second = shown
    assert (first.pool, first.http, first.grpc) == ("llm", "10.0.0.2:8000", "")
    assert (first.variant, first.zone, first.capacity) == ("canary", "z", 2)
    assert (first.source, first.draining, first.held) == (FILE, False, False)
    assert (second.variant, second.draining) == ("stable", True)
    assert next(left_out(WRITTEN, members, Found())).startswith("pool llm: f4 (file /f): one of")


def test_a_source_that_never_answered_has_no_number() -> None:
    """Unknown is not 0."""
    first, second = sources(Found())
    assert (first.endpoints, first.age_seconds, first.trouble) == (3, 1.5, "")
    assert not second.HasField("endpoints")
    assert not second.HasField("age_seconds")
    assert second.trouble == "no answer"


def test_a_hold_has_the_time_that_is_left() -> None:
    """None where only a confirmation ends it, and never less than nothing."""
    ids = tuple(f"f{n}" for n in range(MAX_SHOWN + 5))
    (message,) = held(Found(Hold(50.0, 130.0, ids, 200)))
    assert (message.pool, message.of, message.left_seconds) == ("llm", 200, 30.0)
    assert list(message.endpoints) == list(ids[:MAX_SHOWN])
    (over,) = held(Found(Hold(50.0, 90.0, ids, 200)))
    assert over.left_seconds == 0.0
    (open_,) = held(Found(Hold(50.0, None, ids, 200)))
    assert not open_.HasField("left_seconds")
    assert list(held(Found())) == []


def test_what_cannot_join_is_told_by_pool() -> None:
    """Before what is a member but not in the fleet."""
    found = Found(unfit=("file /f: r9: it has no `http` address",))
    assert list(left_out(WRITTEN, Members(), found)) == [
        "pool llm: file /f: r9: it has no `http` address"
    ]
