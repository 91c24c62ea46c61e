"""A blocking Redis pipeline: sends many packed commands; counts or parses the replies."""

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
        self._socket.close()

    def push(self, packed: bytes) -> None:
        """Sends packed commands and waits until all were executed; ignores the replies."""
        sender = self._send_in_thread(packed + _END_COMMAND)
        tail = b""
        while not tail.endswith(_END_REPLY):
            tail = (tail + self._receive())[-len(_END_REPLY) :]
        sender.join()

    def ask(self, commands: list[tuple[Word, ...]]) -> list[Any]:
        """Sends commands and returns their replies; raises the first error."""
        sender = self._send_in_thread(pack(commands))
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
        """Sends one command and returns its reply."""
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
            raise ConnectionError("Redis closed the connection")
        return data

    def _send_in_thread(self, packed: bytes) -> threading.Thread:
        sender = threading.Thread(target=self._socket.sendall, args=(packed,), daemon=True)
        sender.start()
        return sender
