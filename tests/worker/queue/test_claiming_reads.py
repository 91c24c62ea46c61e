"""Redis 8.4 can read and claim in one command, which the reader uses if the server supports it."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions
from redis.exceptions import NoPermissionError, ResponseError

from tests.conftest import eventually
from tests.worker.kit import Rig, RigMaker


class NewerServer:
    """The reader's connection to a server that reports a given version.

    From 8.4 on its reads accept the CLAIM option, and entries have their idle time and the number
    of deliveries.
    """

    def __init__(self, connection: Any, info: bytes | Exception) -> None:
        self._connection = connection
        self.info = info
        self.reads: list[tuple[Any, ...]] = []
        self.asked = 0
        #: Entries with an expired lease that the next read claims.
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


def connect_reader(rigged: Rig, info: bytes | Exception) -> NewerServer:
    server = NewerServer(rigged.reader._connection, info)
    rigged.reader._connection = server
    return server


def version(text: str) -> bytes:
    return f"# Server\r\nredis_version:{text}\r\nredis_mode:standalone\r\n".encode()


@pytest.mark.parametrize("number", ["8.4.0", "8.4.1", "8.10.0", "9.0.0", "10.0.255"])
async def test_a_newer_server_claims_with_a_read(fake_rig: RigMaker, number: str) -> None:
    rigged = fake_rig()
    server = connect_reader(rigged, version(number))
    await rigged.group()
    jobs = await rigged.post(3)
    rigged.start()
    assert await rigged.ended(jobs) == {b"done"}
    read = server.reads[0]
    assert read[read.index("CLAIM") + 1] == rigged.worker.lease_ms
    assert read.index("BLOCK") < read.index("CLAIM") < read.index("STREAMS")
    for job_id in jobs:
        assert await rigged.types(job_id) == [b"queued", b"running", b"message", b"done"]


async def test_messages_claimed_by_a_read_are_run(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    server = connect_reader(rigged, version("8.4.0"))
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


async def test_a_claimed_entry_that_was_deleted_is_skipped(fake_rig: RigMaker) -> None:
    rigged = fake_rig()
    server = connect_reader(rigged, version("8.4.0"))
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
async def test_an_older_server_does_not(fake_rig: RigMaker, info: bytes | Exception) -> None:
    rigged = fake_rig()
    server = connect_reader(rigged, info)
    [job_id] = await rigged.post()
    rigged.start()
    assert await rigged.settled(job_id) == b"done"
    await eventually(lambda: len(server.reads) > 2)
    assert not any("CLAIM" in read for read in server.reads)
    assert server.asked == 1


async def test_the_reader_works_with_every_server_of_the_tests(real_rig: RigMaker) -> None:
    """The reader detects the version, and jobs run."""
    rigged = real_rig()
    rigged.start()
    [job_id] = await rigged.post()
    assert await rigged.settled(job_id) == b"done"
    info = await rigged.client.info("server")
    is_new = tuple(map(int, info["redis_version"].split(".")[:2])) >= (8, 4)
    assert bool(rigged.reader._claim) == is_new


async def test_the_version_is_read_again_after_an_error(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error the server may be another one, such as an older replica."""
    monkeypatch.setattr("worker.queue.reader._FIRST_BACKOFF_S", 0.01)
    rigged = fake_rig()
    server = connect_reader(rigged, version("8.4.0"))
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


async def test_an_error_while_reading_the_version_is_retried(
    fake_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.reader._FIRST_BACKOFF_S", 0.01)
    rigged = fake_rig()
    server = connect_reader(rigged, exceptions.ConnectionError("away"))
    rigged.start()
    [job_id] = await rigged.post()
    await eventually(lambda: server.asked > 1)
    server.info = version("8.4.0")
    assert await rigged.settled(job_id) == b"done"
    assert "CLAIM" in server.reads[0]
