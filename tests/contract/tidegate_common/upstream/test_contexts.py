"""Contexts for questions to replicas: what is checked, renewed files, faults, and bounds."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from support.certificates import Authority
from tidegate_common.upstream import contexts as module
from tidegate_common.upstream.contexts import (
    LOOK_S,
    SILENCE_S,
    ReplicaContexts,
    ReplicaTls,
    ReplicaTlsError,
    client_context,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Clock:
    """Time as the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Lab:
    """Authorities and certificates, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.other = Authority(folder, "ca"), Authority(folder, "other")
        self.replica = self.authority.sign("replica", "DNS:triton.test")
        self.expired = self.authority.sign("expired", "DNS:triton.test", days=-1)
        self.own = self.authority.sign("own", "DNS:picker.test")

    def tls(self, **more: str | None) -> ReplicaTls:
        """Return settings with the right authority and name."""
        return ReplicaTls(str(self.authority.own.certificate), None, None, "triton.test")._replace(
            **more
        )

    @property
    def client(self) -> dict[str, str | None]:
        """Return the own certificate, as fields."""
        return {"certificate": str(self.own.certificate), "key": str(self.own.key)}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Return the certificates of this file's tests."""
    return Lab(tmp_path_factory.mktemp("contexts"))


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    """Serve a port that says one byte to whoever completes the handshake."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(b"!")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def trusted(port: int, context: ssl.SSLContext, name: str | None) -> bool:
    """Return whether a connection is made and used."""
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=name or "127.0.0.1"
        )
        try:
            return await reader.read(1) == b"!"
        finally:
            writer.transport.abort()
    except OSError:
        return False


@pytest.mark.parametrize(
    ("changed", "served", "asks", "good"),
    [
        ({}, "replica", False, True),
        ({"ca": "other"}, "replica", False, False),
        ({"server_name": "other.test"}, "replica", False, False),
        ({"server_name": None}, "replica", False, True),
        ({}, "expired", False, False),
        ({"ca": None}, "expired", False, True),
        ({}, "replica", True, False),
        ({"own": "yes"}, "replica", True, True),
    ],
    ids=[
        "right",
        "wrong authority",
        "wrong name",
        "no name asked for",
        "expired",
        "nothing is checked",
        "certificate demanded",
        "certificate shown",
    ],
)
async def test_what_is_checked_is_what_envoys_check(
    lab: Lab, changed: dict[str, str | None], served: str, asks: bool, good: bool
) -> None:
    """The chain and the time by `ca`, the name with `server_name`, nothing without `ca`."""
    more = dict(changed)
    if more.get("ca"):
        more["ca"] = str(lab.other.own.certificate)
    if more.pop("own", None):
        more |= lab.client
    tls = lab.tls(**more)
    pair = lab.replica if served == "replica" else lab.expired
    context = await ReplicaContexts().of(tls)
    async with serving(lab.authority.server(pair, ask_clients=asks)) as port:
        assert await trusted(port, context, tls.server_name) is good


def test_a_fault_of_files_names_the_field_the_file_and_the_fix(lab: Lab, tmp_path: Path) -> None:
    """An operator reads what to change, and never what a file contains."""
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    locked = tmp_path / "locked.key"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nc2VjcmV0\n")
    ca = str(lab.authority.own.certificate)
    certificate, key = str(lab.own.certificate), str(lab.own.key)
    for settings, said in (
        (ReplicaTls("/nowhere/ca.crt"), "`ca`: cannot read /nowhere/ca.crt: No such file"),
        (ReplicaTls(str(tmp_path)), f"`ca`: cannot read {tmp_path}: Is a directory"),
        (ReplicaTls(str(empty)), f"`ca`: {empty} contains no certificates"),
        (ReplicaTls(ca, "/nowhere/c", key), "`certificate`: cannot read /nowhere/c"),
        (ReplicaTls(ca, certificate, "/nowhere/k"), "`key`: cannot read /nowhere/k"),
        (ReplicaTls(ca, certificate, str(locked)), f"`key`: {locked} has a passphrase"),
        (ReplicaTls(ca, certificate, str(lab.replica.key)), "is not the key of the certificate"),
        (ReplicaTls(ca, str(empty), key), f"`certificate`: {empty} or {key} is not valid"),
    ):
        with pytest.raises(ReplicaTlsError) as found:
            client_context(settings, "h2")
        assert said in str(found.value)
        assert "c2VjcmV0" not in str(found.value)


async def test_renewed_files_are_taken_at_the_second_look(lab: Lab, tmp_path: Path) -> None:
    """They are replaced one after the other; what was in force serves until both fit."""
    files = {"certificate": tmp_path / "tls.crt", "key": tmp_path / "tls.key"}
    new = lab.authority.sign("new", "DNS:new.test")
    for field, path in files.items():
        shutil.copy(getattr(lab.own, field), path)
    tls = lab.tls(**{field: str(path) for field, path in files.items()})
    clock = Clock()
    contexts = ReplicaContexts(clock)
    first = await contexts.of(tls)
    shutil.copy(new.certificate, files["certificate"])
    with capture_logs() as logged:
        for _ in range(3):
            clock.now += LOOK_S
            assert await contexts.of(tls) is first
        shutil.copy(new.key, files["key"])
        clock.now += LOOK_S
        assert await contexts.of(tls) is first
        clock.now += LOOK_S
        assert await contexts.of(tls) is not first
    assert [each["event"] for each in logged] == ["replica_files_not_taken", "replica_files_taken"]
    assert logged[0]["instead"] == "what was in force"


async def test_files_are_looked_at_once_for_all_who_ask(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many questions there are at a time, and not again within a second."""
    looks = []
    real = module.client_context

    def counted(*given: object) -> ssl.SSLContext:
        looks.append(given)
        return real(*given)  # type: ignore[arg-type] # as they came

    monkeypatch.setattr(module, "client_context", counted)
    clock = Clock()
    contexts = ReplicaContexts(clock)
    found = await asyncio.gather(*(contexts.of(lab.tls()) for _ in range(20)))
    clock.now += LOOK_S / 2
    assert set(found) == {await contexts.of(lab.tls())}
    assert len(looks) == 1


async def test_missing_files_are_told_once_and_taken_when_they_come(
    lab: Lab, tmp_path: Path
) -> None:
    """Nobody is asked meanwhile, and other pools are not affected."""
    ca = tmp_path / "ca.crt"
    missing, clock = lab.tls(ca=str(ca)), Clock()
    contexts = ReplicaContexts(clock)
    with capture_logs() as logged:
        for _ in range(5):
            with pytest.raises(ReplicaTlsError, match="cannot read"):
                await contexts.options(missing)
            assert await contexts.of(lab.tls())
            clock.now += LOOK_S
        shutil.copy(lab.authority.own.certificate, ca)
        options = await contexts.options(missing)
    assert isinstance(options["ssl"], ssl.SSLContext)
    assert options["server_hostname"] == "triton.test"
    assert [(each["event"], each["instead"]) for each in logged] == [
        ("replica_files_not_taken", "replicas are not asked")
    ]


async def test_who_speaks_plain_needs_no_options() -> None:
    """A pool without TLS costs nothing."""
    contexts = ReplicaContexts()
    assert await contexts.options(None) == {}
    assert len(contexts) == 0


async def test_contexts_and_complaints_are_bounded(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings that were asked for last are kept; an address is complained of now and then."""
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    monkeypatch.setattr(module, "MAX_FAILED", 2)
    clock = Clock()
    contexts = ReplicaContexts(clock)
    first, *others = [lab.tls(server_name=f"{number}.test") for number in range(3)]
    kept = await contexts.of(first)
    await contexts.of(others[0])
    assert await contexts.of(first) is kept
    await contexts.of(others[1])
    assert len(contexts) == 2
    assert await contexts.of(first) is kept
    with capture_logs() as logged:
        for address in ("a", "a", "b", "b", "c", "a"):
            contexts.failed(address, OSError("x" * 1000))
        clock.now += SILENCE_S
        contexts.failed("a", OSError("again"))
    assert [each["address"] for each in logged] == ["a", "b", "c", "a", "a"]
    assert len(logged[0]["reason"]) == 300
