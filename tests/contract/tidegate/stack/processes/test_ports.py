"""Reserved ports."""

import socket

import pytest

from tidegate.stack.processes.ports import HeldPorts


def listen(port: int) -> socket.socket:
    """Listen with SO_REUSEADDR, like all servers of the stack."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def test_ports_differ():
    """A reserved port is returned only once."""
    with HeldPorts() as ports:
        assert len({ports.take() for _ in range(50)}) == 50


def test_a_server_can_use_a_held_port():
    """The holder never listens, so connections reach the server."""
    with HeldPorts() as ports:
        port = ports.take()
        with listen(port) as server, socket.create_connection(("127.0.0.1", port), 60) as client:
            accepted, peer = server.accept()
            accepted.close()
            assert peer == client.getsockname()


def test_a_server_can_come_back_to_its_port():
    """A restarted child finds its port free."""
    with HeldPorts() as ports:
        port = ports.take()
        listen(port).close()
        listen(port).close()


def test_binding_port_0_never_returns_a_held_port():
    """The system does not assign a reserved port to a socket that binds port 0."""
    with HeldPorts() as ports:
        held = {ports.take() for _ in range(20)}
        with HeldPorts() as others:
            assert not held & {others.take() for _ in range(200)}


def test_an_address_is_on_loopback():
    """Addresses are on 127.0.0.1."""
    with HeldPorts() as ports:
        host, _, port = ports.address().partition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0


def test_closing_lets_the_ports_go():
    """After ``close``, ports can be bound without SO_REUSEADDR."""
    ports = HeldPorts()
    port = ports.take()
    ports.close()
    ports.close()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_a_system_without_ports_leaks_no_socket(monkeypatch):
    """An error while reserving a port closes the socket."""
    monkeypatch.setattr("tidegate.stack.processes.ports.LOOPBACK", "192.0.2.1")
    with HeldPorts() as ports, pytest.raises(OSError, match="assign"):
        ports.take()
