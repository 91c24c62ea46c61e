"""The echo worker as in the contract, and the order of its writes."""

from __future__ import annotations

import asyncio
import json
import shlex

import pytest

from sluice.common.contracts.jobs import TASKS
from tests.support.worker.harness import MakeWorker, WorkerHarness


async def test_echo_as_the_contract_says(make_worker: MakeWorker) -> None:
    worker = make_worker()
    for task in TASKS:
        job_id = await worker.run_job(task=task, payload=b'{"text":"hello","n":[1,null]}')
        text = f"echo(task={task}): {{'text': 'hello', 'n': [1, None]}}"
        record = await worker.job(job_id)
        assert len(record) == 9
        result = json.loads(record[b"result"])
        assert result == {"text": text, "ms": result["ms"]}
        assert isinstance(result["ms"], int)
        assert record[b"error"] == b""
        assert await worker.parsed_events(job_id) == [
            ("queued", "gateway.enqueue", {}),
            ("running", "worker.start", {"attempt": 1}),
            ("message", "worker.echo", {"text": text}),
            ("done", "worker.done", {"ms": result["ms"]}),
        ]
        times = [int(event[b"ts"]) for event in await worker.events(job_id)]
        assert times == sorted(times)
        assert int(record[b"updated_ts"]) == times[-1]
    assert await worker.pending() == 0
    assert await worker.without_ttl() == []


async def test_many_jobs_each_end_once(make_worker: MakeWorker) -> None:
    worker = make_worker(max_inflight=16)
    jobs = await worker.post(40)  # older than the group
    worker.start()
    for job_id in jobs:
        assert await worker.settled(job_id) == b"done"
        assert await worker.types(job_id) == [b"queued", b"running", b"message", b"done"]
    await worker.stop()
    assert await worker.pending() == 0
    assert (await worker.store.counts()).ended == 40


# -- MONITOR ----------------------------------------------------------------------------------

WRITES = {"HSET", "XADD", "XACK", "DEL", "SET", "HDEL", "XCLAIM", "HMSET", "XDEL", "XTRIM"}


async def monitored(worker: WorkerHarness, action: object) -> list[list[str]]:
    """The write commands that Redis executed during an action, in order."""
    path = str(worker.backend.url).removeprefix("unix://")
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"MONITOR\r\n")
    assert await reader.readline() == b"+OK\r\n"
    await action
    await worker.client.echo("that was all")
    commands: list[list[str]] = []
    while True:
        line = (await asyncio.wait_for(reader.readline(), 5)).decode(errors="replace")
        command = shlex.split(line.split("] ", 1)[1])
        if command[-1] == "that was all":
            break
        commands.append([command[0].upper(), *command[1:]])
    writer.transport.abort()
    return [command for command in commands if command[0] in WRITES]


@pytest.mark.real_redis
@pytest.mark.one_server
async def test_monitor_the_queue_is_written_last_and_acked_last(make_worker: MakeWorker) -> None:
    worker = make_worker()
    await worker.group()
    jobs: list[str] = []

    async def post() -> None:
        jobs.extend(await worker.post())

    async def work() -> None:
        worker.start()
        await worker.settled(jobs[0])
        await worker.stop()

    enqueued = await monitored(worker, post())
    job, events = f"job:{jobs[0]}", f"job:{jobs[0]}:events"
    assert [command[:2] for command in enqueued] == [
        *(["HSET", job], ["XADD", events], ["XADD", "jobs:stream"])
    ]
    worked = await monitored(worker, work())
    assert [
        (command[0], command[1], "running" in command, "done" in command)
        for command in worked
        if command[1] != f"job:{jobs[0]}:lease"
    ] == [
        ("HSET", job, True, False),
        ("XADD", events, True, False),
        ("XADD", events, False, False),
        ("HSET", job, False, True),
        ("XADD", events, False, True),
        ("XACK", "jobs:stream", False, False),
    ]
    assert worked[-1][0] == "XACK"
