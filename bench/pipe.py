"""A blocking pipeline to Redis: many packed commands out, replies counted or parsed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hiredis

Word = str | bytes | int

_END = b"bench-end"
_END_COMMAND = hiredis.pack_command(("ECHO", _END))  # type: ignore[arg-type]
_END_REPLY = b"$%d\r\n%b\r\n" % (len(_END), _END)
_CHUNK = 1 << 18
_TIMEOUT_S = 120.0


def pack(commands: Iterable[tuple[Word, ...]]) -> bytes:
    """Commands as they travel."""
    return b"".join([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]


class Pipe:
    """One connection that sends and receives at the same time."""

    def __init__(self, address: Path | tuple[str, int]) -> None:
        if isinstance(address, Path):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(_TIMEOUT_S)
            self._socket.connect(str(address))
        else:
            self._socket = socket.create_connection(address, _TIMEOUT_S)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def push(self, packed: bytes) -> None:
        """Send packed commands, wait until all were executed, look at no reply."""
        sender = self._send_beside(packed + _END_COMMAND)
        tail = b""
        while not tail.endswith(_END_REPLY):
            tail = (tail + self._receive())[-len(_END_REPLY) :]
        sender.join()

    def ask(self, commands: list[tuple[Word, ...]]) -> list[Any]:
        """Send commands and return their replies, raising the first error among them."""
        sender = self._send_beside(pack(commands))
        reader = hiredis.Reader()
        replies: list[Any] = []
        while len(replies) < len(commands):
            reader.feed(self._receive())
            while (reply := reader.gets()) is not False:
                if isinstance(reply, Exception):
                    raise reply
                replies.append(reply)
        sender.join()
        return replies

    def one(self, *command: Word) -> Any:
        """Send one command and return its reply."""
        self._socket.sendall(pack((command,)))
        reader = hiredis.Reader()
        while True:
            reader.feed(self._receive())
            if (reply := reader.gets()) is not False:
                if isinstance(reply, Exception):
                    raise reply
                return reply

    def _receive(self) -> bytes:
        data = self._socket.recv(_CHUNK)
        if not data:
            raise ConnectionError("Redis hung up")
        return data

    def _send_beside(self, packed: bytes) -> threading.Thread:
        sender = threading.Thread(target=self._socket.sendall, args=(packed,), daemon=True)
        sender.start()
        return sender
