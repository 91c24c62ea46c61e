"""Real worker processes on a queue, with and without the stream; `tests/interop` kills them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.observability.heartbeats import read_heartbeats
from tests.support.processes.worker import Process, spawner
from tests.support.servers import BUNDLED, Backend, RealServer
from tests.support.waiting import eventually
from tests.support.worker.bullmq import TIMEOUT_S, Bull, bull_on

pytestmark = [pytest.mark.process, pytest.mark.real_redis]

HANDLERS = """
import asyncio
import os

async def work(context, data):
    await context.progress(1)
    while "until" in data and not os.path.exists(data["until"]):
        await asyncio.sleep(0.02)
    return context.job_id

def register(registry):
    registry.add_named("work", work)
"""


@pytest.fixture
async def bull(real_server: Callable[[str], RealServer]) -> AsyncIterator[Bull]:
    server = real_server(BUNDLED)
    server.client.flushall()
    async for made in bull_on(Backend(BUNDLED, server.url)):
        yield made


@pytest.fixture
def spawn(tmp_path: Path, bull: Bull) -> Iterator[Callable[..., Process]]:
    (tmp_path / "its_handlers.py").write_text(HANDLERS)
    for start in spawner(tmp_path):

        def begin(module: str, start: Any = start, **environment: object) -> Process:
            settings = {
                "worker_handlers": "its_handlers",
                "bullmq_queues": bull.keys.queue,
                "redis_url": bull.url,
                "pythonpath": tmp_path,
                "sluice_data_dir": tmp_path,
                "bullmq_stalled_interval_ms": 200,
            }
            return start(module, **{**settings, **environment})

        yield begin


async def test_the_worker_finishes_its_job_before_it_stops(
    bull: Bull, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    process = spawn("worker.bullmq")
    job_id = await bull.add("work", {"until": str(tmp_path / "go")})
    await bull.event(job_id, "progress")
    process.send_signal(signal.SIGTERM)
    process.wait_for_line("stopping:")
    await asyncio.sleep(0.1)  # time to stop, if it were to stop at once
    assert await bull.state(job_id) == "active"
    (tmp_path / "go").touch()
    [found] = await bull.ended(job_id)
    assert (found["returnvalue"], found["ats"]) == (f'"{job_id}"', "1")
    assert process.wait() == 0
    assert "Traceback" not in process.log


@pytest.mark.slow("starts a worker")
async def test_with_the_stream_it_is_part_of_the_heartbeat(
    bull: Bull, spawn: Callable[..., Process]
) -> None:
    process = spawn("worker", heartbeat_s=0.1, llm_base_url="", audit_every_s=0)
    job_id = await bull.add("work")
    await bull.ended(job_id)
    client = Backend(BUNDLED, bull.url)

    async def is_reported() -> bool:
        beats = await read_heartbeats(client.client(), JobKeys())
        readings = [reading for beat in beats for reading in beat.bullmq]
        return [(r.queue, r.succeeded) for r in readings] == [(bull.keys.queue, 1)]

    await eventually(is_reported, TIMEOUT_S)
    await client.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert "Traceback" not in process.log


@pytest.mark.slow("starts two workers")
async def test_built_in_handlers_and_missing_queues(
    bull: Bull, spawn: Callable[..., Process]
) -> None:
    """Without WORKER_HANDLERS it has the built-in ones; without queues it exits."""
    process = spawn("worker.bullmq", worker_handlers="", llm_base_url="")
    job_id = await bull.add("tool", {"tool": "add", "args": {}})
    [found] = await bull.ended(job_id)
    assert "no handler" not in found.get("failedReason", "")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    process = spawn("worker.bullmq", bullmq_queues="")
    assert process.wait() == 78
    assert "BULLMQ_QUEUES is not set" in process.log
