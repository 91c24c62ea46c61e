"""All APIs through real processes on a Cluster of six nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.conftest import eventually
from tests.gateway.processes import RawStream
from tests.process.cluster_rig import PARTITIONS, ClusterRig
from tests.topologies import LONG_TIMEOUT_MS, cluster
from tests.worker.features.images.kit import photo
from tests.worker.processes import spawner

pytestmark = [pytest.mark.process, pytest.mark.topology]

TIMEOUT_S = 60.0
FLOW = """
from common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from worker.features.workflows.output import StepItem, StepOutput

async def first(context):
    return StepOutput("made", [StepItem({"n": n}) for n in range(3)])

async def last(context):
    return StepOutput(str(len(await context.items("first"))))

def register_workflows(workflows):
    steps = tuple(StepDefinition(name, name[:3], name, 0.5) for name in ("first", "last"))
    workflows.add(WorkflowDefinition("two_v1", steps), {"first": first, "last": last})
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRig]:
    """One gateway and two workers for all tests, because they start slowly."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "cluster_flow.py").write_text(FLOW)
    with (
        cluster(node_timeout_ms=LONG_TIMEOUT_MS) as servers,
        contextlib.contextmanager(spawner)(folder) as spawn,
    ):
        made = ClusterRig(servers, spawn, folder)
        try:
            for name in ("one", "two"):
                made.worker(name, worker_handlers="cluster_handlers,cluster_flow")
            yield made
        finally:
            made.end()


@pytest.fixture
async def rig(processes: ClusterRig) -> AsyncIterator[ClusterRig]:
    async with processes.connected():
        yield processes


def partitions_of(job_ids: list[str]) -> set[int]:
    return {PARTITIONS.number(job_id) for job_id in job_ids}


async def is_ended(rig: ClusterRig, job_id: str, status: str = "done") -> None:
    async def ended() -> bool:
        return await rig.status(job_id) == status

    await eventually(ended, TIMEOUT_S)


async def watched(rig: ClusterRig, job_id: str) -> list[str]:
    stream = await RawStream.open(rig.gateway.port, f"/v1/jobs/{job_id}/events")
    kinds = [block.event for block in await stream.rest()]
    await stream.close()
    return [kind for kind in kinds if kind is not None]


async def test_jobs_of_every_partition(rig: ClusterRig) -> None:
    """Jobs are accepted, watched and listed; totals include all partitions."""
    jobs = await asyncio.gather(*(rig.post(ms=5) for _ in range(40)))
    assert len(partitions_of(jobs)) == PARTITIONS.count
    for kinds in await asyncio.gather(*(watched(rig, job_id) for job_id in jobs)):
        assert kinds[0] == "hello"
        assert kinds[-1] == "done"
        assert kinds.count("done") == 1
    await rig.check_history(jobs)
    listed: list[str] = []
    cursor = ""
    for _ in range(30):
        page = await rig.get(f"/v1/jobs?limit=15{cursor}")
        listed += (job["job_id"] for job in page["jobs"])
        cursor = f"&cursor={page['next']}"
        if page["next"] is None:
            break
    assert len(set(listed)) == len(listed)
    assert set(jobs) <= set(listed)
    workers = (await rig.get("/v1/workers"))["workers"]
    assert {worker["consumer"] for worker in workers} == {"one", "two"}
    assert (await rig.client.get("/readyz")).status_code == 200
    audit = await rig.client.post("/v1/audit")
    assert audit.status_code == 200, audit.text
    report = json.loads(audit.text.splitlines()[-1])
    assert report["type"] == "report", report
    assert report["violations_total"] == 0, audit.text


async def test_one_key_makes_one_job(rig: ClusterRig) -> None:
    keys = [f"key-{number}" for number in range(12)]
    made = [await asyncio.gather(*(rig.post(key=key) for _ in range(4))) for key in keys]
    assert [len(set(jobs)) for jobs in made] == [1] * len(keys)
    assert len({jobs[0] for jobs in made}) == len(keys)
    other = {"task": "chat", "payload": {"ms": 7}}
    answer = await rig.client.post("/v1/jobs", json=other, headers={"Idempotency-Key": keys[0]})
    assert answer.status_code == 422
    await rig.check_history([jobs[0] for jobs in made])


async def test_waiting_and_running_jobs_are_canceled(rig: ClusterRig) -> None:
    running = [await rig.post(ms=60_000) for _ in range(4)]
    later = [await rig.post(delay_s=600.0) for _ in range(4)]

    async def all_run() -> bool:
        return {await rig.status(job_id) for job_id in running} == {"running"}

    await eventually(all_run, TIMEOUT_S)
    for job_id in (*running, *later):
        answer = await rig.client.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.status_code in (200, 202), answer.text
    for job_id in (*running, *later):
        await is_ended(rig, job_id, "canceled")
        assert (await watched(rig, job_id))[-1] == "canceled"


async def test_scheduled_jobs_wait(rig: ClusterRig) -> None:
    jobs = [await rig.post(delay_s=5.0) for _ in range(8)]
    assert len(partitions_of(jobs)) > 1
    assert await rig.status(jobs[-1]) == "queued"
    await rig.check_history(jobs)


async def test_dead_letters_of_all_partitions_are_redriven(rig: ClusterRig) -> None:
    before = (await rig.get("/v1/dlq"))["total"]
    bad = {"mend": "mended"}
    jobs = [await rig.post(payload=bad, max_attempts=1) for _ in range(8)]
    assert len(partitions_of(jobs)) > 1
    for job_id in jobs:
        await is_ended(rig, job_id, "error")
    first = await rig.get("/v1/dlq?limit=5")
    assert first["total"] == before + 8
    rest = await rig.get(f"/v1/dlq?limit=5&before={first['next']}")
    dead_letters = [*first["items"], *rest["items"]]
    assert {dead_letter["job_id"] for dead_letter in dead_letters} == set(jobs)
    (rig.folder / "mended").touch()
    answer = await rig.client.post("/v1/dlq/redrive", json={"all": True, "rate_per_s": 100.0})
    assert answer.status_code == 200, answer.text
    redriven = [one["job_id"] for one in answer.json()["redriven"]]
    assert len(redriven) == 8
    await rig.check_history(redriven)


async def test_a_pause_applies_to_all_partitions(rig: ClusterRig) -> None:
    [queue] = (await rig.get("/v1/queues"))["queues"]
    name = queue["name"]
    answer = await rig.client.post(f"/v1/queues/{name}/pause", json={"why": "tea"})
    assert answer.status_code == 200, answer.text
    early: list[str] = []

    async def workers_know() -> bool:
        early.append(await rig.post())
        await asyncio.sleep(0.3)
        return await rig.status(early[-1]) == "queued"

    try:
        await eventually(workers_know, TIMEOUT_S)
        jobs = [await rig.post() for _ in range(8)]
        assert len(partitions_of(jobs)) > 1
        await asyncio.sleep(0.5)
        assert {await rig.status(job_id) for job_id in jobs} == {"queued"}
    finally:
        answer = await rig.client.post(f"/v1/queues/{name}/resume")
    assert answer.status_code == 200, answer.text
    await rig.check_history([*early, *jobs])


async def test_a_workflow_runs_in_partition_0(rig: ClusterRig) -> None:
    body = {"workflow": "two_v1", "auto_advance": True}
    made: dict[str, Any] = {}

    async def created() -> bool:  # once the gateway knows the workflow
        answer = await rig.client.post("/api/workflow/jobs", json=body)
        assert answer.status_code in (200, 422), answer.text
        made.update(answer.json().get("job", {}))
        return bool(made)

    await eventually(created, TIMEOUT_S)
    path = f"/api/workflow/jobs/{made['job_id']}"

    async def completed() -> bool:
        status = await rig.get(f"{path}/status")
        assert "fail" not in json.dumps(status.get("job", {}).get("status", "")), status
        return bool(status["job"]["status"] == "completed")

    await eventually(completed, TIMEOUT_S)


async def test_an_image_is_processed(rig: ClusterRig) -> None:
    made = await rig.client.post("/v1/images", json={})
    assert made.status_code == 201, made.text
    image_id = made.json()["image_id"]
    answer = await rig.client.put(
        f"/v1/images/{image_id}/upload",
        content=photo(seed=1, size=(640, 480)),
        headers={"Content-Type": "image/jpeg"},
    )
    assert answer.status_code == 202, answer.text

    async def processed() -> bool:
        status = (await rig.get(f"/v1/images/{image_id}"))["status"]
        assert status != "failed"
        return bool(status == "processed")

    await eventually(processed, TIMEOUT_S)
    content = await rig.client.get(f"/v1/images/{image_id}/content")
    assert (content.status_code, content.headers["content-type"]) == (200, "image/webp")
