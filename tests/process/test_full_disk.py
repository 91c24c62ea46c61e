"""The disk of Redis is full: jobs are refused, none is lost or run twice, and all continue."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import commands
from tests.support.processes.gateway import TIMEOUT_S, StartGateway
from tests.support.processes.jobs import KEYS, check_history, statuses
from tests.support.processes.retrying_clients import RetryingClients
from tests.support.processes.worker import Process
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.topologies import Node
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow("fills a disk under real processes")]

RECOVERY_S = 90.0
#: Jobs that run while the disk is full.
HELD = 3
#: Requests before, during and after the full disk.
REQUESTS = 20
#: Attempts longer than this are repeated if their lease cannot be renewed.
LEASE_MS = 60_000
#: Each attempt adds a line to a file; a held job ends once the file `go` exists.
HANDLERS = """
import asyncio
from pathlib import Path

HERE = Path(__file__).parent

async def chat(context, payload):
    note("attempts", context)
    if payload.get("held"):
        while not (HERE / "go").exists():
            await asyncio.sleep(0.02)
        note("results", context)
    return {"attempt": context.attempt}

def note(name, context):
    with (HERE / name).open("a") as file:
        print(context.job_id, file=file)

def register(registry):
    registry.add("chat", chat)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as found:
        yield found


@pytest.fixture
def start_node(disk: SmallDisk) -> Iterator[Callable[[str], Node]]:
    with contextlib.ExitStack() as stack:

        def start(fsync: str) -> Node:
            node = disk.node(fsync)
            stack.callback(node.end)
            node.start()
            return node

        yield start


@pytest.mark.parametrize("fsync", ["everysec", "always"])
async def test_a_full_disk_loses_no_job(
    fsync: str,
    disk: SmallDisk,
    start_node: Callable[[str], Node],
    start_gateway: StartGateway,
    spawn: Callable[..., Process],
    tmp_path: Path,
) -> None:
    (tmp_path / "disk_handlers.py").write_text(HANDLERS)
    node = start_node(fsync)
    redis_url = f"redis://{node.address}/0"
    gateway = start_gateway(redis_url)
    workers = [
        spawn(
            "worker",
            redis_url=redis_url,
            consumer=name,
            lease_ms=LEASE_MS,
            block_ms=200,
            max_inflight=8,
            worker_handlers="disk_handlers",
            pythonpath=tmp_path,
            embedder="off",
        )
        for name in ("one", "two")
    ]
    async with gateway.http_async() as client:
        held = [gateway.submit(payload={"held": True}) for _ in range(HELD)]
        await eventually(lambda: len(noted(tmp_path, "attempts")) == HELD, TIMEOUT_S)
        load = RetryingClients(client, "load", {}, 0.02, RECOVERY_S)
        async with load.running():
            await load.recovered(time.monotonic(), REQUESTS)
            disk.fill()
            await eventually(lambda: load.refused["store_unavailable"] >= REQUESTS, TIMEOUT_S)
            await check_refusal(client, fsync, node, held[0])
            (tmp_path / "go").touch()
            await eventually(lambda: len(noted(tmp_path, "results")) == HELD, TIMEOUT_S)
            if fsync == "everysec":  # their results cannot be stored yet
                assert statuses(node.client, held) == {"running"}
            freed_at = time.monotonic()
            disk.free()
            if fsync == "always":
                assert not node.alive
                node.start()
            await load.recovered(freed_at, REQUESTS)
        assert (await client.get("/readyz")).status_code == 200
    assert set(load.refused) == {"store_unavailable"}
    job_ids = [*held, *load.acknowledged.values()]
    check_history(node.client, job_ids, RECOVERY_S)
    stored = {key.decode() for key in node.client.scan_iter(KEYS.job("*"), count=1000)}
    assert {key for key in stored if key.count(":") == 1} == {KEYS.job(each) for each in job_ids}
    assert sorted(noted(tmp_path, "attempts")) == sorted(job_ids)
    audit = commands.run("audit", "--local", REDIS_URL=redis_url)
    assert audit.code == 0, audit
    for log in (gateway.log, *(worker.log for worker in workers)):
        assert "Traceback" not in log, log


async def check_refusal(client: httpx.AsyncClient, fsync: str, node: Node, job_id: str) -> None:
    """A request is refused with a problem, and readiness and doctor name the cause."""
    answer = await client.post("/v1/jobs", json={"task": "chat", "payload": {}})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    found = doctor(node)
    if fsync == "always":
        assert found["redis.reachable"]["status"] == "fail"
        return
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["status"] == "running"
    for problem in (answer.json(), ready.json()):
        assert "No space left on device" in problem["detail"]
    last_write = found["redis.last_write"]
    assert last_write["status"] == "fail"
    assert "the disk is full" in last_write["cause"]
    status = (await client.get("/v1/status")).text
    assert "is the disk full?" in status


def doctor(node: Node) -> dict[str, Any]:
    ran = commands.run("doctor", "--json", REDIS_URL=f"redis://{node.address}/0")
    return {each["check"]: each for each in json.loads(ran.out)["findings"]}


def noted(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().split() if path.exists() else []
