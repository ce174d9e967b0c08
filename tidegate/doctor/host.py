"""The machine on which Envoy and Tidegate's services run: limits, kernel settings, disk.

Sources: ``getrlimit(2)``, ``listen(2)``, ``ip-sysctl`` of the Linux kernel's documentation,
control groups v2 (``memory.max``).
"""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate.doctor.diagnosis import Diagnosis, fault, risk
from tidegate.stack.bounds import MAX_CONNECTIONS, MAX_HEAP_MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xds_server.fleet.model.fleet import Fleet

ABOUT: Final = "this machine"
FILES_A_CONNECTION: Final = 2
"""Descriptors of a proxied request: the client's connection and the replica's."""
SPARE_FILES: Final = 1_024
"""Descriptors for logs, libraries, control channels and probes."""
LEAST_BACKLOG: Final = 1_024
LEAST_PORTS: Final = 10_000
SPARE_MIB: Final = 512
"""Memory of a picker and a control server, MiB."""
LEAST_DISK_MIB: Final = 256
"""Space for revisions and their journal, MiB."""
LEAST_CPUS: Final = 2
_MIB: Final = 2**20


class HostFacts(NamedTuple):
    """Facts about a machine; ``None`` where it does not tell."""

    open_files: int
    """Soft limit of this shell's processes."""
    backlog: int | None
    """``net.core.somaxconn``."""
    ports: tuple[int, int] | None
    """``net.ipv4.ip_local_port_range``, first and last."""
    memory_mib: int | None
    """Least of the machine's memory and this control group's limit."""
    cpus: int


class StateFolder(NamedTuple):
    """Facts about the folder of ``tidegate xds --state``."""

    path: str
    exists: bool
    writable: bool
    free_mib: int | None


def read_host(root: Path = Path("/")) -> HostFacts:
    """Read the facts of this machine; ``root`` is the folder above ``proc`` and ``sys``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 2**31
    net = root / "proc/sys/net"
    backlog = _numbers(net / "core/somaxconn")
    ports = _numbers(net / "ipv4/ip_local_port_range")
    return HostFacts(
        open_files=soft,
        backlog=backlog[0] if backlog else None,
        ports=(ports[0], ports[1]) if len(ports) == 2 else None,  # noqa: PLR2004 - first and last
        memory_mib=_memory_mib(root),
        cpus=len(os.sched_getaffinity(0)),
    )


def _memory_mib(root: Path) -> int | None:
    limit = _numbers(root / "sys/fs/cgroup/memory.max")
    whole: list[int] = []
    try:
        lines = (root / "proc/meminfo").read_text("ascii").splitlines()
        whole = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    except (OSError, ValueError, IndexError):
        pass
    return min([*limit, *whole]) // _MIB if limit or whole else None


def _numbers(path: Path) -> list[int]:
    """Return the whole numbers of a file; none where it cannot be read or says ``max``."""
    try:
        return [int(each) for each in path.read_text("ascii").split()]
    except (OSError, ValueError):
        return []


def read_state(path: Path) -> StateFolder:
    """Read the facts of a state folder."""
    exists = path.is_dir()
    free = shutil.disk_usage(path).free // _MIB if exists else None
    return StateFolder(str(path), exists, exists and os.access(path, os.W_OK | os.X_OK), free)


def judge_host(host: HostFacts, fleet: Fleet | None = None) -> Iterator[Diagnosis]:
    """Yield what of a machine would harm a fleet; without one, what would harm any."""
    files = FILES_A_CONNECTION * MAX_CONNECTIONS + SPARE_FILES
    if host.open_files < files:
        yield risk(
            ABOUT,
            f"allows a process {host.open_files} open files; Envoy with {MAX_CONNECTIONS}"
            f" connections needs {files}",
            f"set `ulimit -n {files}` (systemd: `LimitNOFILE={files}`), or lower"
            " `tidegate envoy-bootstrap --max-connections`",
        )
    if host.backlog is not None and host.backlog < LEAST_BACKLOG:
        yield risk(
            ABOUT,
            f"queues at most {host.backlog} new connections of a listener"
            " (net.core.somaxconn): a burst of clients is refused",
            "run `sysctl -w net.core.somaxconn=4096`, and keep it in /etc/sysctl.d",
        )
    if host.memory_mib is not None and host.memory_mib < MAX_HEAP_MIB + SPARE_MIB:
        yield risk(
            ABOUT,
            f"has {host.memory_mib} MiB of memory; Envoy's heap may take {MAX_HEAP_MIB} MiB, a"
            f" picker and a control server {SPARE_MIB} MiB",
            "lower `--max-heap` of `tidegate envoy-bootstrap`, or raise the memory limit",
        )
    if host.cpus < LEAST_CPUS:
        yield risk(
            ABOUT,
            "has one CPU for Envoy and the picker, which delay each other",
            "give the services two CPUs",
        )
    yield from _judge_ports(host.ports, fleet)


def _judge_ports(ports: tuple[int, int] | None, fleet: Fleet | None) -> Iterator[Diagnosis]:
    if ports is None:
        return
    first, last = ports
    if last - first + 1 < LEAST_PORTS:
        yield risk(
            ABOUT,
            f"has {last - first + 1} ports for outgoing connections (net.ipv4.ip_local_port_range)",
            'run `sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, and keep it in'
            " /etc/sysctl.d",
        )
    if fleet is None:
        return
    listener = fleet.listener
    for address in (listener.address, *(each.address for each in listener.further)):
        port = int(address.rpartition(":")[2])
        if first <= port <= last:
            yield risk(
                address,
                f"is in the range of ports for outgoing connections, {first} to {last}: one of"
                " them can take it while Envoy restarts",
                f"listen below {first}, or add the port to `net.ipv4.ip_local_reserved_ports`",
            )


def judge_state(state: StateFolder) -> Iterator[Diagnosis]:
    """Yield what keeps a control server from storing revisions in a folder."""
    if not state.exists:
        yield fault(
            state.path,
            "does not exist; revisions could not be stored",
            f"make it: `install -d -m 700 {state.path}`, owned by the control server's user",
        )
    elif not state.writable:
        yield fault(
            state.path,
            "may not be written by this user",
            f"run this as the control server's user, or `chown` {state.path} to it",
        )
    elif state.free_mib is not None and state.free_mib < LEAST_DISK_MIB:
        yield risk(
            state.path,
            f"has {state.free_mib} MiB of free space; a full disk keeps changes in memory only",
            f"free {LEAST_DISK_MIB} MiB, or move the folder",
        )
