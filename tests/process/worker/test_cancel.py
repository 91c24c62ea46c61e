"""Cancellation across processes: the worker reacts at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from common.jobs.scripts import CORE_SCRIPT
from common.jobs.store import JobStore
from common.redis.batching import ScriptBatcher
from tests.support.processes.jobs import GROUP, KEYS, field, pending, post, types, wait_for
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import Backend, RealServer

pytestmark = pytest.mark.process
AT_ONCE_MS = 250
#: The fastest of this many attempts counts, because the machine may be busy.
TRIES = 3

HANDLERS = """
import time

async def cooperative(context, payload):
    await context.emit("begun", {})
    await context.wait_for_cancel()
    await context.emit("noticed", {})
    return {"kept": True}

def plain(context, payload):
    context.emit("begun", {})
    until = time.monotonic() + 30
    while not context.cancel_requested and time.monotonic() < until:
        time.sleep(0.01)
    context.emit("noticed", {})
    return {"kept": True}

def register(registry):
    registry.add("chat", cooperative)
    registry.add("plan", plain)
"""


def cancel(server: RealServer, job_id: str) -> str:
    """As the gateway does it, in a separate process; returns the answer of the script."""

    async def ask() -> str:
        backend = Backend("server", server.url)
        batcher = ScriptBatcher(backend.wire(), KEYS, CORE_SCRIPT, retry_for_s=5.0)
        try:
            store = JobStore(backend.client(), KEYS, batcher)
            return str((await store.cancel(job_id, GROUP, b"{}", 600)).answer.value)
        finally:
            await batcher.close()
            await backend.close()

    return asyncio.run(ask())


def steps(server: RealServer, job_id: str) -> list[tuple[str, str, int]]:
    """Type, step and time of a job's events, in the time of Redis."""
    return [
        (fields[b"type"].decode(), fields[b"step"].decode(), int(fields[b"ts"]))
        for _, fields in server.client.xrange(KEYS.events(job_id))
    ]


def test_running_handlers_are_canceled_at_once(
    server: RealServer, start_worker: Callable[..., Process]
) -> None:
    client = server.client
    start_worker(server, cancel_grace_s=30)
    wait_until(lambda: dict(client.pubsub_numsub(KEYS.control)).get(KEYS.control.encode()))
    for task in ("chat", "plan"):
        reaction_ms = []
        for job_id in [post(client, "{}", task) for _ in range(TRIES)]:
            wait_until(lambda job_id=job_id: b"begun" in types(client, job_id))
            assert cancel(server, job_id) == "canceling"
            wait_for(client, job_id, b"canceled")
            found = steps(server, job_id)
            assert [(kind, step) for kind, step, _ in found] == [
                ("queued", "gateway.enqueue"),
                ("running", "worker.start"),
                ("begun", "worker.handler"),
                ("canceling", "gateway.cancel"),
                ("canceling", "worker.cancel"),
                ("noticed", "worker.handler"),
                ("canceled", "worker.cancel"),
            ]
            reaction_ms.append(found[5][2] - found[3][2])
            assert field(client, job_id, "result") == {"kept": True}
        assert min(reaction_ms) < AT_ONCE_MS, (task, reaction_ms)
    assert pending(client) == 0
