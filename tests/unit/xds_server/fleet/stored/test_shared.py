"""A history that several control servers share: one writes, and none of its changes is lost."""

from __future__ import annotations

import random
import zlib
from contextlib import closing

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from support.fleets import fleet, pool
from support.shared_keys import KilledAt, SharedKeys
from xds_server.fleet.revision import FileState, FleetState, Revision
from xds_server.fleet.store import RevisionStore, StoreError
from xds_server.fleet.stored.epochs import MAX_RECORDS, HistoryHead, HistoryMark, StoredPart, Tenure
from xds_server.fleet.stored.schema import VERSION
from xds_server.fleet.stored.shared import CHUNK_BYTES, HEAD, SharedFault, SharedHistory

TTL_S = 6.0
KEY = "value"


def history(keys: SharedKeys, writer: str = "a", **calls) -> SharedHistory:
    """Return a copy of what these keys have; by default its server always may lead."""
    own = {"holds": lambda: True, "deposed": lambda: None, "pause": lambda: None, **calls}
    return SharedHistory(keys, "etcd://test", writer, **own)


def leading(keys: SharedKeys, writer: str = "a", **calls) -> RevisionStore:
    """Return the store of a server that leads from now on."""
    return RevisionStore(None, shared=history(keys, writer, **calls))


def seen(keys: SharedKeys) -> str | None:
    """Return the value that a new follower sees."""
    copy = history(keys, "seen")
    copy.follow()
    found = copy.db.execute("SELECT value FROM latest WHERE key = ?", (KEY,)).fetchone()
    return found and found[0]


def state(number: int, *names: str) -> FleetState:
    """Return a state with these pools."""
    revision = Revision(number, 1000 + number, "ann", "why", ("line",))
    file = FileState("hash", fleet(pool("filed")))
    return FleetState(revision, fleet(*map(pool, names)), {"r1": (1, 0), "r2": (number, 5)}, file)


def test_the_next_leader_has_all_revisions() -> None:
    """With their numbers, pools, incarnations and the seed of prompt hashes."""
    keys = SharedKeys()
    with closing(leading(keys)) as first:
        first.append(state(1, "one"))
        first.append(state(2, "one", "two"))
        first.note(2, "acknowledged by 2 of 2 clients")
        with closing(leading(keys, "b")) as second:
            assert second.latest() == first.latest()
            assert second.revisions(9) == first.revisions(9)
            assert second.fleet(1) == first.fleet(1)
            assert second.seed() == first.seed()
            second.append(state(3, "two"))
            assert second.latest() == state(3, "two")


def test_a_leader_that_is_replaced_stores_nothing() -> None:
    """Whatever it believes: its head is older than its successor's."""
    keys, told = SharedKeys(), []
    with closing(leading(keys, deposed=lambda: told.append("a"))) as first:
        first.put_value(KEY, "1")
        with closing(leading(keys, "b")):
            with pytest.raises(StoreError, match="another control server leads"):
                first.put_value(KEY, "2")
            assert (told, first.value(KEY), seen(keys)) == (["a"], "1", "1")


def test_a_leader_without_lease_stores_nothing() -> None:
    """Although no other server has replaced it yet."""
    keys, holds = SharedKeys(), [True]
    with closing(leading(keys, holds=lambda: holds[0])) as store:
        holds[0] = False
        with pytest.raises(StoreError, match="does not lead"):
            store.put_value(KEY, "1")


def test_records_are_replaced_by_an_image() -> None:
    """So that a follower reads, and the store has, no more than a bounded number of them."""
    keys = SharedKeys()
    with closing(leading(keys)) as store:
        late = history(keys, "late")
        for number in range(2 * MAX_RECORDS + 3):
            store.put_value(KEY, str(number))
            assert len(keys.values) <= MAX_RECORDS + 3
            if number == MAX_RECORDS // 2:
                late.follow()
        late.follow()
        assert late.db.execute("SELECT value FROM latest WHERE key = ?", (KEY,)).fetchone() == (
            str(number),
        )


def test_large_values_are_split() -> None:
    """A request to etcd has a bound."""
    keys = SharedKeys()
    text = random.Random(1).randbytes(CHUNK_BYTES + 1).hex()
    with closing(leading(keys)) as store:
        store.put_value(KEY, text)
        assert seen(keys) == text
    assert max(len(value) for value, _ in keys.values.values()) <= CHUNK_BYTES


def test_a_refused_request_changes_nothing() -> None:
    """As where etcd's space is used up; the next one works again."""
    keys = SharedKeys()
    with closing(leading(keys)) as store:
        store.put_value(KEY, "1")
        for refused in range(2):
            keys.refuse(refused)
            with pytest.raises(StoreError, match="no space"):
                store.put_value(KEY, "2")
            assert (store.value(KEY), seen(keys)) == ("1", "1")
        store.put_value(KEY, "3")
        assert seen(keys) == "3"


@pytest.mark.parametrize("effect", [True, False])
def test_a_change_of_unknown_outcome_takes_effect_once(effect) -> None:
    """The swap is repeated: an answer was lost, or the request."""
    keys = SharedKeys()
    with closing(leading(keys)) as store:
        keys.unanswered(1, effect=effect)
        store.put_value(KEY, "1")
        store.put_value(KEY, "2")
        assert (store.value(KEY), seen(keys)) == ("2", "2")


@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_leader_begins_though_an_answer_is_lost(number, effect) -> None:
    """It asks again, and its epoch is one above the last all the same."""
    keys = SharedKeys()
    leading(keys).close()
    keys.unanswered(number, effect=effect)
    copy = history(keys, "b")
    with closing(RevisionStore(None, shared=copy)) as store:
        store.put_value(KEY, "1")
        assert (copy.head.epoch, seen(keys)) == (2, "1")


@pytest.mark.parametrize("text", [b"no json", b"{}", b'{"epoch": 1, "image": [1], "records": []}'])
def test_a_damaged_head_is_told(text) -> None:
    """It is not taken for an empty history."""
    keys = SharedKeys()
    keys.write(HEAD, text)
    with pytest.raises(SharedFault, match="etcd://test has"):
        history(keys).follow()


def test_a_damaged_image_is_told() -> None:
    """It is not taken for an empty history."""
    keys = SharedKeys()
    leading(keys).close()
    (image,) = (key for key in keys.values if key.startswith("image/"))
    keys.write(image, b"?")
    with pytest.raises(SharedFault, match="damaged"):
        history(keys).follow()
    del keys.values[image]
    with pytest.raises(SharedFault, match="has lost image/0000000000000000/a-0/0"):
        history(keys).follow()


@pytest.mark.parametrize("now", ["older", "empty"])
def test_an_older_history_is_refused(now) -> None:
    """As of a restored backup: what this server has read is not lost in silence."""
    keys = SharedKeys()
    with closing(leading(keys)) as store:
        backup = dict(keys.values)
        store.put_value(KEY, "1")
    copy = history(keys, "b")
    copy.follow()
    keys.values = backup if now == "older" else {}
    for _ in range(2):
        with pytest.raises(
            SharedFault, match=r"older than what this server has read.*not change 1 of"
        ):
            copy.follow()
    history(keys, "new").follow()


class Kept:
    """HistoryMarks in memory."""

    def __init__(self) -> None:
        self.mark = HistoryMark()

    def read(self) -> HistoryMark:
        """Return the mark."""
        return self.mark

    def write(self, mark: HistoryMark) -> None:
        """Keep a mark."""
        self.mark = mark


def test_a_server_that_starts_again_refuses_an_older_history() -> None:
    """It goes on from there where the loss is accepted, once, and others follow it."""
    keys, kept, others = SharedKeys(), Kept(), Kept()
    with closing(leading(keys, marks=kept)) as store:
        backup = dict(keys.values)
        store.put_value(KEY, "1")
    history(keys, "other", marks=others).follow()
    keys.values = dict(backup)
    with pytest.raises(StoreError, match=r"has change 0 of leader 1.*once with --accept-loss"):
        leading(keys, "b", marks=kept)
    accepting = history(keys, "c", marks=kept, accepts_loss=True)
    with closing(RevisionStore(None, shared=accepting)) as store:
        assert store.value(KEY) is None
    assert kept.mark == accepting.head.mark
    history(keys, "other", marks=others).follow()
    keys.values = dict(backup)
    with pytest.raises(SharedFault, match="older than"):
        accepting.follow()


def test_a_history_of_a_newer_version_is_not_led() -> None:
    """Its image says so, before a server claims the lead."""
    keys = SharedKeys()
    leading(keys).close()
    copy = history(keys)
    copy.follow()
    copy.db.execute(f"PRAGMA user_version = {VERSION + 1}")
    (image,) = (key for key in keys.values if key.startswith("image/"))
    keys.write(image, zlib.compress(copy.db.serialize()))
    with pytest.raises(SharedFault, match="written by a newer Tidegate"):
        history(keys).follow()


def test_an_empty_store_begins_with_the_history_of_a_folder(tmp_path) -> None:
    """Revisions and seed are those of the one control server before; later the folder stays."""
    with closing(RevisionStore(tmp_path)) as alone:
        alone.append(state(1, "one"))
        seed = alone.seed()
    keys = SharedKeys()
    with closing(RevisionStore(tmp_path, shared=history(keys))) as first:
        assert (first.latest(), first.seed()) == (state(1, "one"), seed)
        first.append(state(2, "two"))
    with closing(RevisionStore(tmp_path, shared=history(keys, "b"))) as second:
        assert second.latest() == state(2, "two")
    with closing(RevisionStore(tmp_path)) as alone:
        assert alone.latest() == state(1, "one")


def test_changes_have_consecutive_numbers() -> None:
    """A head takes the next one only."""
    head = HistoryHead(1, StoredPart(4, "a", 1, 1))
    with pytest.raises(ValueError, match="cannot follow 4"):
        head.appended(StoredPart(6, "b", 1, 1))


def test_a_leader_killed_at_any_point_of_a_change() -> None:
    """The next one has the change whole or not at all, and goes on with the next number."""
    for point in range(50):
        keys = SharedKeys()
        first = leading(keys)
        first.append(state(1, "one"))
        keys.kill(point)
        try:
            first.append(state(2, "one", "two"))
            acknowledged = True
        except KilledAt:
            acknowledged = False
        ended = not keys.killing
        keys.killing = None
        with closing(leading(keys, "b")) as second:
            found = second.latest()
            assert found in (state(1, "one"), state(2, "one", "two"))
            assert not acknowledged or found == state(2, "one", "two")
            number = found.revision.number + 1
            second.append(state(number, "three"))
            assert [each.number for each in second.revisions(9)] == list(range(number, 0, -1))
        if acknowledged and not ended:
            assert point
            return
    raise AssertionError("a change has more than 50 points")


class Servers(RuleBasedStateMachine):
    """Three servers, of which each may lead, stop for any time, or lose any request or answer."""

    @initialize()
    def begin(self) -> None:
        """Begin with an empty store."""
        self.now, self.number, self.epoch, self.change = 0.0, 0, 0, 0
        self.keys = SharedKeys()
        self.owner, self.lease_ends = None, 0.0
        self.tenures: dict[int, Tenure] = {}
        self.stores: dict[int, RevisionStore] = {}
        self.possible: set[str | None] = {None}

    def holds(self, who: int) -> bool:
        """Return whether a server believes that it leads."""
        return who in self.tenures and self.tenures[who].holds(self.now)

    def depose(self, who: int) -> None:
        """End a server, which then begins anew."""
        self.tenures.pop(who, None)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.5, 5.0, 7.0]))
    def wait(self, seconds) -> None:
        """Let time pass, in which a server that stands still does nothing."""
        self.now += seconds
        if self.now >= self.lease_ends:
            self.owner = None
        believers = [who for who in self.tenures if self.holds(who)]
        assert len(believers) <= 1
        assert all(who == self.owner for who in believers)

    @precondition(lambda self: self.owner is None)
    @rule(who=st.integers(0, 2), there=st.sampled_from([0.0, 0.5]), back=st.sampled_from([0, 2, 7]))
    def claim(self, who, there, back) -> None:
        """Claim the lead: the request takes its time, and so does the answer."""
        asked = self.now
        self.now += there
        self.owner, self.lease_ends = who, self.now + TTL_S
        self.tenures[who] = Tenure(asked, TTL_S)
        self.wait(float(back))
        if not self.holds(who):
            self.depose(who)
            return
        self.stores[who] = leading(
            self.keys,
            f"{who}-{self.now}-{self.change}",
            # It may stand still after this look, so a swap must not rely on it.
            holds=lambda: True,
            deposed=lambda: self.depose(who),
        )
        assert self.stores[who].value(KEY) in self.possible
        self.possible = {self.stores[who].value(KEY)}

    @precondition(lambda self: self.owner is not None)
    @rule(there=st.sampled_from([0.0, 1.0]), back=st.sampled_from([0.0, 1.0, 5.5]))
    def renew(self, there, back) -> None:
        """Renew the lease, or lose the answer where that comes too late."""
        who, asked = self.owner, self.now
        self.wait(there)
        if self.owner != who or who not in self.tenures:
            return
        self.lease_ends = self.now + TTL_S
        self.wait(back)
        if self.holds(who):
            self.tenures[who].renewed(asked, TTL_S)

    @rule(who=st.integers(0, 2), lost=st.sampled_from([None, False, True]))
    def store(self, who, lost) -> None:
        """Store a change, also as one that led once; lose a request or its answer on the way."""
        if who not in self.stores:
            return
        newest = self.keys.read(HEAD)[1]
        leads = self.stores[who]._shared._version == newest
        self.change += 1
        if lost is not None:
            self.keys.unanswered(1, effect=lost)
        try:
            self.stores[who].put_value(KEY, str(self.change))
        except StoreError:
            assert not leads
        else:
            assert leads
            self.possible = {str(self.change)}
        self.keys.unanswered(None)

    @rule()
    def look(self) -> None:
        """A follower sees what was stored last, and neither epoch nor number go back."""
        copy = history(self.keys, "look")
        copy.follow()
        if copy.head is None:
            return
        assert seen(self.keys) in self.possible
        assert copy.head.epoch >= self.epoch
        assert copy.head.number >= self.number
        self.epoch, self.number = copy.head.epoch, copy.head.number

    def teardown(self) -> None:
        """Close the stores."""
        for each in getattr(self, "stores", {}).values():
            each.close()


TestServers = pytest.mark.filterwarnings("ignore::ResourceWarning")(Servers.TestCase)
TestServers.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
