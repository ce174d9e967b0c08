"""Hosts of one machine, and a switch between them that cuts and delays; Linux and root only.

Each host is a network namespace whose only way out is a TUN device. This process reads and writes
the packets of all, so that of any pair of hosts either direction can be cut, silently, or delayed,
and TCP does what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Final

from support.partition import UnsupportedError

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWNET: Final = 0x4000_0000
TUNSETIFF: Final = 0x4004_54CA
IFF_TUN: Final = 0x0001
IFF_NO_PI: Final = 0x1000
MTU: Final = "9000"
BURST: Final = 64
"""Packets of one host that are carried before another's."""
_IPV4: Final = 4


class Network:
    """The switch. This process becomes a host itself.

    Args:
        own: Its address, such as ``198.18.0.1``.

    Raises:
        UnsupportedError: No root, no namespaces or no TUN devices.
    """

    def __init__(self, own: str) -> None:
        self._taps: dict[bytes, int] = {}
        self._spaces: list[int] = []
        self._cut: Counter[tuple[bytes, bytes]] = Counter()
        self._slow: dict[tuple[bytes, bytes], float] = {}
        _unshare(CLONE_NEWNS | CLONE_NEWNET)
        subprocess.run(("mount", "--make-rprivate", "/"), check=True)  # noqa: S607 - of the system
        self._plug(own)

    def host(self, address: str) -> tuple[str, ...]:
        """Make a host; return the words by which a command runs there."""
        made: list[int] = []
        failed: list[Exception] = []

        def make() -> None:
            try:
                _unshare(CLONE_NEWNET)
                made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
                self._plug(address)
            except Exception as error:  # noqa: BLE001 - raised by the caller
                failed.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        self._spaces += made
        return ("nsenter", f"--net=/proc/{os.getpid()}/fd/{made[0]}", "--")

    def run(self) -> None:
        """Carry packets from now on, in the running loop."""
        for tap in self._taps.values():
            asyncio.get_running_loop().add_reader(tap, self._carry, tap)

    def close(self) -> None:
        """Carry no more."""
        for tap in self._taps.values():
            asyncio.get_running_loop().remove_reader(tap)
            os.close(tap)
        for space in self._spaces:
            os.close(space)

    def cut(self, one: str, two: str, *, whole: bool = False) -> None:
        """Let nothing pass from an address to another, or take that back."""
        self._cut[socket.inet_aton(one), socket.inet_aton(two)] += -1 if whole else 1

    def slow(self, one: str, two: str, delay_s: float) -> None:
        """Delay what passes from an address to another; 0 = no more."""
        self._slow[socket.inet_aton(one), socket.inet_aton(two)] = delay_s

    def _plug(self, address: str) -> None:
        try:
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", b"tun0", IFF_TUN | IFF_NO_PI))
        except OSError as error:
            raise UnsupportedError(f"/dev/net/tun: {error}") from None
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "set", "tun0", "mtu", MTU, "txqueuelen", "5000", "up"),
            ("address", "add", f"{address}/24", "dev", "tun0"),
        ):
            subprocess.run(("ip", *words), check=True)  # noqa: S607 - of the system
        self._taps[socket.inet_aton(address)] = tap

    def _carry(self, tap: int) -> None:
        for _ in range(BURST):
            try:
                packet = os.read(tap, 65_536)
            except OSError:  # no more for now
                return
            if packet[0] >> 4 != _IPV4:
                continue
            way = packet[12:16], packet[16:20]
            to = self._taps.get(way[1])
            if to is None or self._cut[way] > 0:
                continue
            delay_s = self._slow.get(way)
            if delay_s:
                asyncio.get_running_loop().call_later(delay_s, _put, to, packet)
            else:
                _put(to, packet)


def _put(tap: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # a full queue drops, as a switch does
        os.write(tap, packet)


def _unshare(what: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(what) != 0:
        raise UnsupportedError(f"unshare: {os.strerror(ctypes.get_errno())}")


def small_disk(folder: Path, mebibytes: int) -> None:
    """Make a folder a disk of its own, which goes with this process."""
    folder.mkdir(parents=True)
    options = f"size={mebibytes}m"
    subprocess.run(("mount", "-t", "tmpfs", "-o", options, "none", str(folder)), check=True)  # noqa: S607 - of the system


def unmount(folder: Path) -> None:
    """Let such a disk go."""
    subprocess.run(("umount", "-l", str(folder)), check=True)  # noqa: S607 - of the system
