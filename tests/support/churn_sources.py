"""Sources whose replicas come and go, and how they break: a file, and a name server."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from support.churn_replicas import ChurnReplica

if TYPE_CHECKING:
    from pathlib import Path

    from support.names import NameServer
    from tidegate.stack.processes.ports import HeldPorts

NOWHERE = "127.0.0.1:1"


class FileDriver:
    """A file that another program writes, well or badly.

    Args:
        path: The file.
        ports: Free ports.
    """

    def __init__(self, path: Path, ports: HeldPorts) -> None:
        self.listed: dict[str, ChurnReplica] = {}
        self.tells_ends = False
        self.broken = False
        self._path = path
        self._ports = ports

    def settings(self) -> dict[str, Any]:
        """Return fields of the pool."""
        return {"endpoints_from": [{"file": str(self._path), "protocols": ["http"]}]}

    async def make(self, number: int, rng: random.Random) -> ChurnReplica:
        """Return a replica at a free port."""
        return ChurnReplica(f"f{number}", f"127.0.0.1:{self._ports.take()}", rng)

    def _text(self) -> str:
        entries = (f'- {{id: {e.name}, http: "{e.address}"}}\n' for e in self.listed.values())
        return "endpoints:\n" + "".join(entries)

    async def say(self) -> None:
        """Replace the file."""
        if not self.broken:
            made = self._path.with_suffix(".new")
            made.write_text(self._text())
            made.rename(self._path)

    def ended(self, replica: ChurnReplica) -> None:
        """Nothing is to be done."""

    async def fault(self, rng: random.Random) -> None:
        """Write half of it, nothing, other replicas or nonsense, or delete it."""
        if self.broken:
            await self.mend()
            return
        self.broken = True
        whole = self._text()
        kind = rng.choice(["half", "empty", "none", "wrong", "deleted", "nonsense"])
        if kind == "deleted":
            self._path.unlink()
            return
        text = {
            "half": whole[: rng.randrange(len(whole))],
            "empty": "",
            "none": "endpoints: []\n",
            "wrong": f'endpoints:\n- {{id: wrong, http: "{NOWHERE}"}}\n',
            "nonsense": "\x00[}{" * 20,
        }[kind]
        self._path.write_text(text)

    async def mend(self) -> None:
        """Write the file as it should be."""
        self.broken = False
        await self.say()


class NamesDriver:
    """Replicas by addresses of a name, and by SRV records, of a name server that fails.

    Args:
        server: The name server.
        port: The port of all replicas.
    """

    def __init__(self, server: NameServer, port: int) -> None:
        self.listed: dict[str, ChurnReplica] = {}
        self.tells_ends = False
        self.broken = False
        self._server = server
        self._port = port

    def settings(self) -> dict[str, Any]:
        """Return fields of the pool."""
        every = {"min_interval": "200ms", "max_interval": "1s"}
        return {
            "endpoints_from": [
                {"dns": {"name": "t.example.", "http": self._port, **every}},
                {"dns": {"name": "_h._tcp.example.", "srv": "http", **every}},
            ]
        }

    async def make(self, number: int, rng: random.Random) -> ChurnReplica:
        """Return a replica at an address of its own; every third is a target of SRV records."""
        host = f"127.1.{number // 250}.{number % 250 + 1}"
        kind = "s" if number % 3 == 0 else "a"
        return ChurnReplica(f"{kind}{number}", f"{host}:{self._port}", rng)

    async def say(self) -> None:
        """Set the records."""
        if self.broken:
            return
        hosts = {each.name: each.address.rpartition(":")[0] for each in self.listed.values()}
        plain = [host for name, host in hosts.items() if name[0] == "a"]
        targets = {name: host for name, host in hosts.items() if name[0] == "s"}
        if plain:
            self._server.set("t.example.", "A", plain, ttl=1)
        else:
            self._server.forget("t.example.", "A")
        for name, host in targets.items():
            self._server.set(f"{name}.example.", "A", [host], ttl=1)
        records = [f"0 0 {self._port} {name}.example." for name in targets]
        self._server.set("_h._tcp.example.", "SRV", records or ["0 0 0 ."], ttl=1)

    def ended(self, replica: ChurnReplica) -> None:
        """Nothing is to be done."""

    async def fault(self, rng: random.Random) -> None:
        """Lose answers, fail, deny, or answer with other addresses."""
        if self.broken:
            await self.mend()
            return
        self.broken = True
        kind = rng.choice(["lost", "refused", "empty", "missing", "garbage", "wrong"])
        if kind == "wrong":
            self._server.set("t.example.", "A", [f"127.2.0.{rng.randint(1, 9)}"], ttl=0)
        else:
            self._server.fault = kind
            self._server.fault_kind = rng.choice(["", "A", "AAAA", "SRV"])

    async def mend(self) -> None:
        """Answer as it should."""
        self.broken, self._server.fault, self._server.fault_kind = False, "", ""
        await self.say()
