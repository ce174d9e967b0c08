"""A real etcd with some members, of which some can be killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import grpc

from kubernetes.cluster import START_S, Process
from tidegate.stack.processes.ports import HeldPorts
from xds_server.fleet.stored.shared import SharedFault
from xds_server.leading.etcd import Etcd

if TYPE_CHECKING:
    from pathlib import Path


class Member(Process):
    """A member of the cluster."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir()
        super().__init__("etcd", folder, *arguments)


class EtcdCluster:
    """The members; an async context manager.

    Args:
        folder: Holds state and logs.
        count: How many.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._held = HeldPorts()
        self.clients = [self._held.address() for _ in range(count)]
        """Addresses for clients."""
        self.peers = [f"http://{self._held.address()}" for _ in range(count)]
        """URLs for each other."""
        self._folder = folder
        whole = ",".join(f"etcd-{number}={url}" for number, url in enumerate(self.peers, 1))
        self.members = [
            Member(
                folder / f"etcd-{number}",
                f"--name=etcd-{number}",
                f"--data-dir={self.data(number)}",
                f"--listen-client-urls=http://{client}",
                f"--advertise-client-urls=http://{client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster={whole}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            )
            for number, (client, peer) in enumerate(zip(self.clients, self.peers, strict=True), 1)
        ]

    def data(self, number: int) -> Path:
        """Return the folder of a member's data, by its number, from 1."""
        return self._folder / f"data-{number}"

    @property
    def store(self) -> str:
        """The value of ``--store``."""
        return f"etcd://{','.join(self.clients)}"

    async def __aenter__(self) -> Self:
        for each in self.members:
            each.start()
        etcd = Etcd(self.clients, "/ready/")
        async with asyncio.timeout(START_S):
            while not await asyncio.to_thread(_answers, etcd):
                for each in self.members:
                    each.check()
                await asyncio.sleep(0.1)
        etcd.close()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self.members:
            each.stop()
        self._held.close()

    async def compact(self) -> None:
        """Forget all but the newest values, as ``etcdctl compact`` does."""
        async with grpc.aio.insecure_channel(self.clients[0]) as channel:
            # Range's header, field 1, has the revision in its field 3: our schema leaves it out.
            found = await channel.unary_unary("/etcdserverpb.KV/Put")(b"\n\x01x")
            revision = _revision(found)
            await channel.unary_unary("/etcdserverpb.KV/Compact")(b"\x08" + revision + b"\x10\x01")


def _revision(answer: bytes) -> bytes:
    """Return the varint of ``header.revision``."""
    from tidegate_api.etcd.v3 import etcd_pb2  # noqa: PLC0415 - only its parser

    number = etcd_pb2.TxnResponse.FromString(answer).header.revision
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*made, number))


def _answers(etcd: Etcd) -> bool:
    try:
        etcd.read("x")
    except SharedFault:
        return False
    return True
