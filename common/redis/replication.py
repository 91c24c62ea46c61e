"""Replies that wait until replicas have the change (WAIT after every command)."""

from __future__ import annotations

from typing import Any

from redis import exceptions
from redis.typing import EncodableT

from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import NotReplicated
from sluice.common.redis.pipelined import CommandClient, OnReply, send_and_wait
from sluice.common.text import plural

#: Seconds until the marker key expires, which is only written for WAIT.
_MARKER_TTL_S = 60


class ReplicatedClient:
    """A `CommandClient` whose replies arrive once enough replicas have the change.

    WAIT covers only writes of the same connection. A repeated request writes nothing, and its reply
    must not arrive before replicas have what another connection wrote. So a marker is written in
    between, after everything on which the reply depends. All three commands are sent together:
    otherwise the connection could be lost in between, and the next one could lead to another
    master.
    """

    def __init__(self, wire: CommandClient, keys: JobKeys, replicas: int, timeout_ms: int) -> None:
        self._wire = wire
        self._replicas = replicas
        self._write = ("SET", keys.replication_marker, "", "EX", _MARKER_TTL_S)
        self._wait = ("WAIT", replicas, timeout_ms)

    @property
    def ready(self) -> bool:
        """True if `send` may be called now."""
        return self._wire.ready

    def send(self, args: tuple[EncodableT, ...], on_reply: OnReply) -> None:
        """Send a command; the callback gets its reply once replicas have it, or NotReplicated."""
        replies: list[Any] = []

        def waited(count: Any) -> None:
            for reply in (*replies, count):
                if isinstance(reply, Exception):
                    on_reply(reply)
                    return
            on_reply(replies[0] if count >= self._replicas else self._too_few(count))

        self._wire.send(args, replies.append)
        self._wire.send(self._write, replies.append)
        self._wire.send(self._wait, waited)

    async def execute_command(self, *args: EncodableT) -> Any:
        """Send a command and return its reply once enough replicas have it."""
        if not self._wire.ready:
            await self._wire.execute_command("PING")  # connects
        if not self._wire.ready:
            raise exceptions.ConnectionError("connection closed by Redis")
        return await send_and_wait(self, args)

    async def aclose(self) -> None:
        await self._wire.aclose()

    def _too_few(self, count: int) -> NotReplicated:
        return NotReplicated(f"{count} of {plural(self._replicas, 'replica')} confirmed the change")


def with_replication(
    wire: CommandClient, keys: JobKeys, replicas: int, timeout_ms: int
) -> CommandClient:
    """Wrap the client, unless `replicas` is 0."""
    return ReplicatedClient(wire, keys, replicas, timeout_ms) if replicas else wire
