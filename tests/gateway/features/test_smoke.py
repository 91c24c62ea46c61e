"""One path through workflows, images and documents, on every server."""

from __future__ import annotations

import json
from pathlib import Path

from sluice.common.contracts.rag import RagKeys
from sluice.gateway.features.images.result_consumer import ResultConsumer
from tests.gateway.features.images.test_results import success
from tests.gateway.features.rag.test_documents import DOCUMENTS, NOTE, add, store
from tests.support.gateway.harness import Make
from tests.support.gateway.images import IMAGES, KEYS, STAGES, STORED, Images
from tests.support.gateway.workflows import Workflows
from tests.support.servers import Backend


async def test_a_workflow_is_executed_reviewed_and_undone(make: Make) -> None:
    workflows = Workflows(make())
    job_id = await workflows.reviewing(idempotency_key="k")
    assert await workflows.create_job({"idempotency_key": "k"}) == job_id
    body = {"action": "approve", "proposal_ids": [1, 2]}
    token = (await workflows.post(f"/{job_id}/proposals/bulk", body)).json()["undo_token"]
    answer = await workflows.post(f"/{job_id}/undo", {"undo_token": token})
    assert answer.json()["undone"] == ["p_001", "p_002"]
    decisions = {"decisions": [{"id": 1, "action": "approve"}], "finalize": True}
    answer = await workflows.execute(job_id, "review", {"payload": decisions})
    assert answer.json()["result"]["summary"] == "1 approved, 2 rejected"
    assert await workflows.statuses(job_id) == ["approved", "rejected", "rejected"]
    answer = await workflows.execute(job_id, "apply")
    assert answer.status == 202
    assert (await workflows.post(f"/{job_id}/cancel")).json()["job"]["status"] == "cancelled"
    events = (await workflows.read(f"/{job_id}/events"))["events"]
    assert [event["type"] for event in events] == await workflows.event_types(job_id)
    assert [job["job_id"] for job in (await workflows.read(""))["jobs"]] == [job_id]


async def test_images_are_uploaded_watched_and_deleted(
    make: Make, backend: Backend, tmp_path: Path
) -> None:
    images = Images(make(sluice_data_dir=str(tmp_path)))
    image_id, third_party = await images.uploaded(), await images.uploaded()
    stream = await images.watch(image_id)
    await stream.event("processing")
    for stage in STAGES:
        await images.advance(image_id, stage)
    await images.succeed(image_id)
    assert (await stream.event("ready")).json()["stage"] == "done"
    answer = await images.client.get(f"{IMAGES}/{image_id}/content")
    assert (answer.status, answer.body) == (200, STORED)
    wire = backend.wire(**({"block_s": 2.0} if backend.is_real else {}))
    consumer = ResultConsumer(wire, images.services.store, images.services.metrics)
    await images.redis.xadd(KEYS.results, success(third_party))
    await images.redis.xgroup_create(KEYS.results, "api-workers", "0")
    assert await consumer.run_once() + await consumer.run_once() == 2  # pending, then new ones
    assert (await images.view(third_party))["status"] == "processed"
    assert (await images.client.send("DELETE", f"{IMAGES}/{image_id}")).status == 204
    [listed] = (await images.client.get(IMAGES)).json()["items"]
    assert listed["image_id"] == third_party


async def test_documents_are_added_and_listed(make: Make) -> None:
    gateway = make()
    answer = await add(gateway)
    assert answer.status == 202
    job_id = answer.json()["job_id"]
    payload = await gateway.redis.hget(gateway.keys_of(job_id).job(job_id), "payload")
    assert json.loads(payload or b"")["document"]["id"] == NOTE["id"]
    await store(gateway, RagKeys("default"), "c", "b", "a")
    first = (await gateway.client.get(f"{DOCUMENTS}?limit=2")).json()
    assert ([item["id"] for item in first["items"]], first["total"]) == (["a", "b"], 3)
