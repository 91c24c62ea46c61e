"""Sockets passed by systemd: used if they are meant for this process, refused if unsuitable."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.common.errors import EXIT_CONFIG, SettingsError
from sluice.common.process.host import is_loopback
from sluice.gateway.http import server

Listen = Callable[..., socket.socket]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Opens sockets that listen."""
    opened: list[socket.socket] = []

    def factory(address: object, family: int = socket.AF_INET) -> socket.socket:
        opened.append(socket.socket(family, socket.SOCK_STREAM))
        if family == socket.AF_INET6:
            opened[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        opened[-1].bind(address)  # type: ignore[arg-type]
        opened[-1].listen()
        return opened[-1]

    yield factory
    for one in opened:
        one.close()


@pytest.fixture
def hand_over(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, str]]]:
    """Copies sockets to consecutive descriptors as systemd does, but from 500 instead of 3."""
    copies: list[int] = []

    def factory(*sockets: socket.socket, pid: int | None = None) -> dict[str, str]:
        first = 500
        for number, one in enumerate(sockets):
            copies.append(os.dup2(one.fileno(), first + number))
        monkeypatch.setattr(server, "FIRST_FD", first)
        process = os.getpid() if pid is None else pid
        names = {"LISTEN_PID": str(process), "LISTEN_FDS": str(len(sockets))}
        return {**names, "LISTEN_FDNAMES": "a:b", "PATH": "/bin"}

    yield factory
    for fd in copies:
        with contextlib.suppress(OSError):  # closed with the socket made of it
            os.close(fd)


def test_inherited_sockets_are_used(
    listen: Listen, hand_over: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    tcp, unix = listen(("127.0.0.1", 0)), listen(str(tmp_path / "s"), socket.AF_UNIX)
    environment = hand_over(tcp, unix)
    inherited = server.inherited_sockets(environment)
    assert [one.getsockname() for one in inherited] == [tcp.getsockname(), unix.getsockname()]
    assert [server.socket_url(one) for one in inherited] == [
        f"http://127.0.0.1:{tcp.getsockname()[1]}",
        f"unix:{tmp_path}/s",
    ]
    assert not any(os.get_inheritable(one.fileno()) for one in inherited)
    assert not any(one.getblocking() for one in inherited)
    assert environment == {"PATH": "/bin"}  # child processes must not use them
    assert server.inherited_sockets(environment) == []
    for one in inherited:
        one.close()


def test_sockets_of_another_process_are_ignored(
    listen: Listen, hand_over: Callable[..., dict[str, str]]
) -> None:
    for pid in (1, 0):
        assert server.inherited_sockets(hand_over(listen(("127.0.0.1", 0)), pid=pid)) == []
    assert server.inherited_sockets({}) == []


def test_unsuitable_sockets_are_reported(
    hand_over: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as unbound:
        for one, fault in ((udp, "ListenStream="), (unbound, "does not listen")):
            with pytest.raises(SettingsError, match=fault) as refused:
                server.inherited_sockets(hand_over(one))
            assert refused.value.exit_code == EXIT_CONFIG
    environment = hand_over()
    with pytest.raises(SettingsError, match="descriptor 500"):
        server.inherited_sockets({**environment, "LISTEN_FDS": "1"})
    with (tmp_path / "file").open("w") as file:
        os.dup2(file.fileno(), 500)
        with pytest.raises(SettingsError, match="descriptor 500 is not a socket"):
            server.inherited_sockets({**environment, "LISTEN_FDS": "1"})
        os.close(500)
    with pytest.raises(SettingsError, match="LISTEN_FDS='many'"):
        server.inherited_sockets({**environment, "LISTEN_FDS": "many"})


@pytest.mark.parametrize(
    ("address", "beyond"),
    [
        *((address, False) for address in ("127.0.0.1", "127.0.0.7", "::1", "::ffff:127.0.0.1")),
        *((address, True) for address in ("0.0.0.0", "::")),
    ],
)
def test_sockets_beyond_loopback_are_recognised(
    address: str, beyond: bool, listen: Listen, tmp_path: Path
) -> None:
    unix = listen(str(tmp_path / "s"), socket.AF_UNIX)
    assert not server.beyond_loopback([])
    assert not server.beyond_loopback([unix])
    try:
        one = listen((address, 0), socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError:
        pytest.skip(f"this machine cannot listen on {address}")
    assert server.beyond_loopback([one]) is beyond
    assert server.beyond_loopback([listen(("127.0.0.1", 0)), unix, one]) is beyond


def test_loopback_addresses_are_recognised() -> None:
    addresses = ("10.0.0.1", "fe80::1%2", "::ffff:10.0.0.1", "::1")
    assert [is_loopback(address) for address in addresses] == [False, False, False, True]
