"""Listen addresses of a local stack."""

from __future__ import annotations

from pathlib import Path

from tidegate.stack.addresses import Addresses
from tidegate.stack.processes.ports import HeldPorts
from tidegate_common.unix import MAX_PATH_BYTES, path_of


def test_operators_get_a_socket_in_the_folder(tmp_path: Path) -> None:
    """Nobody else can change a demo's fleet, and its author is known."""
    with HeldPorts() as ports:
        assert path_of(Addresses.free(ports, 1, tmp_path).admin) == tmp_path / "admin.sock"
        assert Addresses.free(ports).admin.startswith("127.0.0.1:")


def test_a_folder_whose_path_is_too_long_for_a_socket_has_a_port() -> None:
    """Temporary folders may be anywhere; the lock beside the socket has a longer name."""
    longest = Path("/" + "a" * (MAX_PATH_BYTES - len("/" + "/admin.sock" + ".lock")))
    with HeldPorts() as ports:
        assert Addresses.free(ports, 1, longest).admin.startswith("unix:")
        assert Addresses.free(ports, 1, Path(f"{longest}a")).admin.startswith("127.0.0.1:")
