"""Redis 8.4 reads and claims in one command: used where the server can, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions
from redis.exceptions import NoPermissionError, ResponseError

from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker


class NewerServer:
    """The reader's connection to a server that says it is of some version.

    From 8.4 on its reads take the CLAIM option, and entries come with how long they were idle
    and how often they were delivered.
    """

    def __init__(self, line: Any, info: bytes | Exception) -> None:
        self._connection = line
        self.info = info
        self.reads: list[tuple[Any, ...]] = []
        self.asked = 0
        #: Entries of silent workers that the next read claims.
        self.claimable: list[list[Any]] = []

    async def execute_command(self, *args: Any) -> Any:
        if args[0] == "INFO":
            self.asked += 1
            if isinstance(self.info, Exception):
                raise self.info
            return self.info
        if args[0] != "XREADGROUP":
            return await self._connection.execute_command(*args)
        self.reads.append(args)
        if "CLAIM" not in args:
            return await self._connection.execute_command(*args)
        at = args.index("CLAIM")
        reply = await self._connection.execute_command(*args[:at], *args[at + 2 :])
        fresh = [[*entry, 0, 0] for entry in reply[0][1]] if reply else []
        claimed, self.claimable = self.claimable, []
        entries = claimed + fresh
        return [[args[-2].encode(), entries]] if entries else None

    async def aclose(self) -> None:
        await self._connection.aclose()


def talking_to(rigged: Rig, info: bytes | Exception) -> NewerServer:
    server = NewerServer(rigged.reader._connection, info)
    rigged.reader._connection = server
    return server


def version(text: str) -> bytes:
    return f"# Server\r\nredis_version:{text}\r\nredis_mode:standalone\r\n".encode()


@pytest.mark.parametrize("number", ["8.4.0", "8.4.1", "8.10.0", "9.0.0", "10.0.255"])
async def test_a_newer_server_is_asked_to_claim(fake_rig: RigMaker, number: str) -> None:
    rigged = fake_rig()
    server = talking_to(rigged, version(number))
    await rigged.group()
    jobs = await rigged.post(3)
    rigged.start()
    assert await rigged.ended(jobs) == {b"done"}
    read = server.reads[0]
    assert read[read.index("CLAIM") + 1] == rigged.worker.lease_ms
    assert read.index("BLOCK") < read.index("CLAIM") < read.index("STREAMS")
    for job_id in jobs:
        assert await rigged.types(job_id) == [b"queued", b"running", b"message", b"done"]


async def test_what_a_read_claimed_is_run(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    server = talking_to(rigged, version("8.4.0"))
    await rigged.group()
    left = await rigged.post(2)
    messages = await rigged.messages()  # a worker that died
    server.claimable = [
        [
            message.id.encode(),
            [item for pair in message.fields.items() for item in pair],
            31_000,
            number + 1,
        ]
        for number, message in enumerate(messages)
    ]
    fresh = await rigged.post(2)
    rigged.start()
    assert await rigged.ended([*left, *fresh]) == {b"done"}
    await rigged.all_acked()


async def test_a_claimed_entry_that_was_deleted_is_no_trouble(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    server = talking_to(rigged, version("8.4.0"))
    server.claimable = [[b"1-1", None, 31_000, 7]]
    [job_id] = await rigged.post()
    rigged.start()
    assert await rigged.settled(job_id) == b"done"


@pytest.mark.parametrize(
    "info",
    [
        version("7.0.15"),
        version("8.3.9"),
        version("7.2.4") + b"server_name:valkey\r\nvalkey_version:9.0.0\r\n",
        version("unknown"),
        b"",
        b"\xff\xfe",
        NoPermissionError("this user has no permissions to run the 'info' command"),
        ResponseError("unknown command 'INFO'"),
    ],
    ids=["7.0", "8.3", "valkey", "odd", "empty", "junk", "forbidden", "unknown"],
)
async def test_others_are_not(fake_rig: RigMaker, info: bytes | Exception) -> None:
    rigged = fake_rig()
    server = talking_to(rigged, info)
    [job_id] = await rigged.post()
    rigged.start()
    assert await rigged.settled(job_id) == b"done"
    await eventually(lambda: len(server.reads) > 2)
    assert not any("CLAIM" in read for read in server.reads)
    assert server.asked == 1


async def test_the_servers_of_these_tests_read_plainly(real_rig: RigMaker) -> None:
    """Whatever they are, the reader finds out for itself, and jobs flow."""
    rigged = real_rig()
    rigged.start()
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"done"
    info = await rigged.client.info("server")
    is_new = tuple(map(int, info["redis_version"].split(".")[:2])) >= (8, 4)
    assert bool(rigged.reader._claim) == is_new


async def test_a_server_that_is_replaced_is_asked_again(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After trouble it may be another one, an older replica for instance."""
    monkeypatch.setattr("worker.queue.reader._FIRST_BACKOFF_S", 0.01)
    rigged = fake_rig()
    server = talking_to(rigged, version("8.4.0"))
    rigged.start()
    await eventually(lambda: any("CLAIM" in read for read in server.reads))
    server.info = version("7.0.15")
    execute = server.execute_command

    async def refuse(*args: Any) -> Any:
        if "CLAIM" in args:
            raise ResponseError("ERR syntax error")
        return await execute(*args)

    server.execute_command = refuse  # type: ignore[method-assign]
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"done"


async def test_trouble_while_asking_is_waited_out(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.reader._FIRST_BACKOFF_S", 0.01)
    rigged = fake_rig()
    server = talking_to(rigged, exceptions.ConnectionError("away"))
    rigged.start()
    [job_id] = await rigged.post()
    await eventually(lambda: server.asked > 1)
    server.info = version("8.4.0")
    assert await rigged.settled(job_id) == b"done"
    assert "CLAIM" in server.reads[0]
