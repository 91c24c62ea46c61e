"""A minimal Redis client for the Unix socket; redis-cli may not be installed."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Union

from deploy.installer.errors import InstallError

Reply = Union[str, int, None, "list[Reply]"]
TIMEOUT_S = 30.0


class RedisCommandError(InstallError):
    """Redis replied with an error."""


class RedisUnavailable(InstallError):
    """Redis is not reachable, or the connection broke."""


class Resp:
    """One connection; sends one command at a time."""

    def __init__(
        self, path: Path, user: str = "", password: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise RedisUnavailable(
                f"cannot connect to Redis at {path}: {error.strerror}",
                "Start it: systemctl start redis.service. If it does not start, see "
                "journalctl -u redis.service -n 50",
            ) from error
        self._file: BinaryIO = self._socket.makefile("rb")
        if user:
            self.execute("AUTH", user, password)

    def execute(self, *words: str | int) -> Reply:
        """Sends one command and returns the reply; raises RedisCommandError or RedisUnavailable."""
        parts = [str(word).encode() for word in words]
        packed = b"*%d\r\n" % len(parts)
        packed += b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        try:
            self._socket.sendall(packed)
            return self._read()
        except OSError as error:
            raise RedisUnavailable(
                f"the connection to Redis was lost: {error}",
                "See journalctl -u redis.service -n 50",
            ) from error

    def number(self, *words: str | int) -> int:
        """Like `execute`, for integer replies."""
        reply = self.execute(*words)
        return int(reply) if isinstance(reply, (int, str)) else 0

    def info(self, section: str) -> dict[str, str]:
        lines = str(self.execute("INFO", section)).splitlines()
        pairs = (line.partition(":") for line in lines if not line.startswith("#"))
        return {name: value for name, _, value in pairs}

    def _read(self) -> Reply:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("connection closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise RedisCommandError(f"Redis returned an error: {rest.decode(errors='replace')}")
        if kind == b":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"*":
            return [self._read() for _ in range(size)]
        return self._file.read(size + 2)[:-2].decode(errors="replace")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Resp:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
