"""What a real API server answered to each call, and what the store does where one fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from support.api_store import ApiPort, SmallApi, recorded
from support.shared_keys import shared
from tidegate.stack.processes.ports import HeldPorts
from xds_server.fleet.store import RevisionStore
from xds_server.fleet.stored import epochs
from xds_server.fleet.stored.shared import SharedFault, SharedHistory, Unreachable
from xds_server.leading import kubernetes

KEY = "tested"


@pytest.fixture
def api():
    """Return a small API server; its port is in ``port``."""
    small = SmallApi()
    with ApiPort(small.answer) as port:
        small.port = port
        yield small


def history(store, writer: str = "a") -> SharedHistory:
    """Return a history there, of a server that may lead."""
    return SharedHistory(store, "the store", writer, lambda: True, lambda: None, lambda: None)


def renewed(store) -> float:
    """Claim the lease and renew it."""
    lease = store.grant(15)
    assert store.claim(b"me", lease)
    return store.keep(lease)


def alike(found: dict) -> dict:
    """Return what both API servers answer."""
    keys = ("kind", "reason", "immutable", "data", "spec", "type", "code")
    metadata = {
        each: value for each, value in found["metadata"].items() if each in ("name", "labels")
    }
    names = [each["metadata"]["name"] for each in found.get("items", ())]
    return {**{each: found.get(each) for each in keys}, **metadata, "names": names}


def test_the_small_api_server_answers_as_the_real_one() -> None:
    """To all calls, in all that the store reads."""
    calls = recorded()
    written = [
        int(each["answer"]["metadata"]["resourceVersion"])
        for each in calls
        if each["method"] in ("POST", "PUT") and each["status"] < 300
    ]
    small = SmallApi(written)
    for call in calls:
        status, found = small.answer(call["method"], call["path"], call["request"])
        assert status == call["status"], call
        if found["kind"] != "Status" or status >= 300:
            assert alike(found) == alike(call["answer"]), call


def test_a_store_does_what_all_stores_do(api) -> None:
    """All calls that the product makes."""
    with closing(api.port.store()) as store:
        shared(store)


def test_only_the_head_and_what_it_names_stays(api, monkeypatch) -> None:
    """Other Secrets are immutable, and deleted once the head names others."""
    monkeypatch.setattr(epochs, "MAX_RECORDS", 3)
    with closing(api.port.store()) as store, closing(api.port.store("other")) as other:
        RevisionStore(None, shared=history(other)).close()
        with closing(RevisionStore(None, shared=history(store))) as revisions:
            for number in range(4):
                revisions.put_value(KEY, str(number))
        late = history(store, "late")
        late.follow()
        find = "SELECT value FROM latest WHERE key = ?"
        assert late.db.execute(find, (KEY,)).fetchone() == (str(number),)
        assert late.head
        own = {name for _, name in api.objects if name.startswith("tidegate-")}
        assert len(own) == 1 + len(late.head.records) == 2
        assert all(api.objects["secrets", name]["immutable"] for name in own)
        assert sum(name.startswith("other") for _, name in api.objects) == 2


@pytest.mark.parametrize("effect", [True, False])
@pytest.mark.parametrize("status", [429, 500, 504])
def test_a_change_of_unknown_outcome_takes_effect_once(api, status, effect) -> None:
    """The API server's store did not answer it in time: of its record, and of the head."""
    with (
        closing(api.port.store()) as store,
        closing(RevisionStore(None, shared=history(store))) as revisions,
    ):
        api.faults += [(status, effect), None, (status, effect)]
        revisions.put_value(KEY, "1")
        revisions.put_value(KEY, "2")
        assert not api.faults
        late = history(store, "late")
        late.follow()
        assert late.head
        assert late.head.number == 2


def test_a_lease_is_free_once_it_stands_still(api, monkeypatch) -> None:
    """For its time, on the clock of whoever looks; each renewal begins it anew."""
    now = [1000.0]
    monkeypatch.setattr(kubernetes, "clock", lambda: now[0])
    with closing(api.port.store()) as first, closing(api.port.store()) as second:
        assert first.leader() is None
        lease = first.grant(first.lease_s)
        assert first.claim(b"first", lease)
        assert second.leader() == b"first"
        now[0] += first.lease_s - 1
        assert second.leader() == b"first"
        assert first.keep(lease) == first.lease_s
        now[0] += 2
        assert second.leader() == b"first"
        now[0] += first.lease_s
        assert second.leader() is None
        assert second.claim(b"second", second.grant(second.lease_s))
        assert first.keep(lease) <= 0
        first.revoke(lease)
        assert first.leader() == b"second"


def test_a_renewal_without_answer_is_found(api) -> None:
    """It has changed the version, and the lease goes on."""
    with closing(api.port.store()) as store:
        lease = store.grant(15)
        assert store.claim(b"me", lease)
        api.faults.append((504, True))
        with pytest.raises(Unreachable):
            store.keep(lease)
        assert store.keep(lease) == 15


@pytest.mark.parametrize(
    ("method", "plural", "call", "said"),
    [
        ("GET", "secrets", lambda store: store.read("head"), "get secrets in the namespace"),
        ("POST", "secrets", lambda store: store.swap("head", b"", 0), "create secrets"),
        ("DELETE", "secrets", lambda store: store.delete("record/0/", "record/9/"), "delete"),
        ("PUT", "leases", renewed, "update leases.coordination.k8s.io"),
    ],
)
def test_a_right_that_lacks_is_named(api, method, plural, call, said) -> None:
    """With the verb, and the Role that would allow it."""
    with closing(api.port.store()) as store:
        store.write("record/1/x", b"r")
        api.denied.add((method, plural))
        with pytest.raises(SharedFault, match=said) as error:
            call(store)
        assert f"resources [{plural}] and verbs [get, " in str(error.value)
        assert not isinstance(error.value, Unreachable)


def test_a_call_ends_with_its_store(monkeypatch) -> None:
    """Its thread would wait for ever, and the process with it."""
    monkeypatch.setattr(kubernetes, "CALL_S", 60.0)
    came, over = threading.Event(), threading.Event()

    def silent(*_):
        came.set()
        over.wait(60.0)
        return 404, {"kind": "Status", "metadata": {}}

    with ApiPort(silent) as port, ThreadPoolExecutor(1) as threads:
        store = port.store()
        call = threads.submit(store.read, "head")
        assert came.wait(60.0)
        store.close()
        with pytest.raises(Unreachable, match="is closed"):
            call.result(60.0)
        over.set()


def test_an_api_server_that_is_away_may_come_back() -> None:
    """Whether a request had an effect is then unknown."""
    with HeldPorts() as ports:
        port = ApiPort(SmallApi().answer)
        port.url = f"http://{ports.address()}"
        with port, closing(port.store()) as store, pytest.raises(Unreachable, match="be asked"):
            store.read("head")
