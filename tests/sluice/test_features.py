"""Workflows, images, documents and keys with both clients, a real gateway and a real worker."""

from __future__ import annotations

import hashlib
import hmac
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import Conflict, Invalid, JobFailed, NotAllowed, NotFound
from tests.sluice.conftest import Connect
from tests.support.client.scripted_gateway import ScriptedGateway, answer
from tests.support.client.site import SECRET, Site
from tests.support.files.photos import encoded, scene
from tests.support.processes.worker import wait_until

pytestmark = pytest.mark.process

PHOTO = encoded(scene(), "jpeg")
LOG = "feat: watch a job\nfix: no zombie is left behind\nfix: a typo\n"


def start_workflow(sluice: Any) -> Any:
    """Start a workflow job, once the gateway knows the workflow."""

    def created() -> Any:
        try:
            return sluice.workflows.create(
                "release_notes_v1",
                auto_advance=True,
                steps={"collect": {"log": LOG}, "publish": {"version": "1.3"}},
                metadata={"by": "test"},
            )
        except Invalid:
            return None

    return wait_until(created, 60)


def test_workflow_from_start_to_end_with_undo(sluice: Any) -> None:
    job = start_workflow(sluice)
    assert job.workflow == "release_notes_v1"
    for event in sluice.workflows.watch(job.job_id):
        if event.type == "job.waiting_input":
            break
    waiting = sluice.workflows.get(job.job_id)
    assert waiting.waits
    assert waiting.current_step == "review"
    items = list(sluice.workflows.results(job.job_id, step="draft", status="proposed"))
    assert len(items) == 3
    first, second, third = items
    decided = sluice.workflows.bulk(job.job_id, "approve", ids=[first.id])
    assert decided.success
    assert decided.undo_token
    undone = sluice.workflows.undo(job.job_id, decided.undo_token, wait_s=10)
    assert undone["undone"]
    edited = sluice.workflows.edit(job.job_id, second.id, to="No child is left behind")
    assert edited.status == "approved"
    with pytest.raises(Conflict) as raised:
        sluice.workflows.edit(job.job_id, second.id, to="x", version=1)
    assert raised.value.code == "version_conflict"
    result = sluice.workflows.decide(
        job.job_id, {first.id: "approve", third.id: "reject"}, wait_s=10
    )
    assert result.success
    types = [event.type for event in sluice.workflows.watch(job.job_id)]
    assert types[0] == "job.created"
    assert types[-1] == "job.completed"
    assert sluice.workflows.get(job.job_id).progress == 1.0
    assert job.job_id in {each.job_id for each in sluice.workflows.list(status="completed")}
    with pytest.raises(Conflict):
        sluice.workflows.execute(job.job_id, "publish")


def test_cancel_workflow(sluice: Any) -> None:
    job = start_workflow(sluice)
    assert sluice.workflows.cancel(job.job_id, "enough").status == "cancelled"
    assert sluice.workflows.cancel(job.job_id).ended
    with pytest.raises(NotFound):
        sluice.workflows.get("wf_19990101_001")
    with pytest.raises(NotFound):
        list(sluice.workflows.watch("../jobs"))


def test_webhook_is_dead_lettered_and_redriven(sluice: Any, script: ScriptedGateway) -> None:
    script.respond(answer(400), answer(200))
    job = sluice.workflows.create(webhook={"url": f"{script.url}/hook"})

    def dead_lettered() -> list[Any]:
        dead_letters = sluice.workflows.webhook_dead_letters()
        return [each for each in dead_letters if each.job_id == job.job_id]

    [dead_letter] = wait_until(dead_lettered, 60)
    event_ids = [dead_letter.event_id]
    assert sluice.workflows.redrive_webhooks(event_ids)["redriven"] == event_ids
    wait_until(lambda: len(script.requests) == 2, 60)
    first, again = script.requests
    assert first.body == again.body
    assert first.json["event_type"] == "job.created"
    signed = again.headers["x-workflow-timestamp"].encode() + b"." + again.body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert again.headers["x-workflow-signature"] == f"sha256={digest}"


def test_image_upload_and_download(sluice: Any, tmp_path: Path) -> None:
    photo = tmp_path / "holiday.jpg"
    photo.write_bytes(PHOTO)
    image = sluice.images.upload(photo, metadata={"album": 7})
    assert image.job_id
    ended = sluice.images.wait(image.image_id)
    assert ended.ended
    assert (ended.status, ended.filename) == ("processed", "holiday.jpg")
    assert ended.metadata == {"album": 7}
    last = list(sluice.images.stream(image.image_id))[-1]
    assert (last.type, last.data["stage"]) == ("ready", "done")
    content = sluice.images.content(image.image_id)
    assert content[:4] == b"RIFF"
    assert len(content) == ended.file_size
    assert next(sluice.images.list()).image_id == image.image_id
    with pytest.raises(Conflict):
        sluice.images.retry(image.image_id)
    sluice.images.delete(image.image_id)
    sluice.images.delete(image.image_id)
    with pytest.raises(NotFound):
        sluice.images.get(image.image_id)


@pytest.mark.slow("processes an image twice")
def test_failed_image_can_be_uploaded_again(sluice: Any) -> None:
    image = sluice.images.upload(b"\xff\xd8\xff" + bytes(64), content_type="image/jpeg")
    failed = sluice.images.wait(image.image_id)
    assert failed.status == "failed"
    assert failed.error_code
    upload = sluice.images.retry(image.image_id)
    sluice.images.send(upload, PHOTO, content_type="image/jpeg")
    assert sluice.images.wait(image.image_id).status == "processed"


@pytest.mark.slow("processes several images")
def test_stream_of_several_images(sluice: Any) -> None:
    ids = [sluice.images.upload(PHOTO).image_id for _ in range(2)]
    ended = {each.data["image_id"] for each in sluice.images.stream(*ids) if each.type == "ready"}
    assert ended == set(ids)


def test_add_search_and_delete_documents(sluice: Any) -> None:
    ns = f"n{uuid.uuid4().hex[:8]}"
    created = sluice.rag.add(
        "The office opens at nine.", namespace=ns, document_id="hours", title="Hours"
    )
    assert (created.document_id, created.replaced) == ("hours", False)
    page = b"<html><title>Menu</title><body><p>There is pea soup.</p></body></html>"
    sluice.rag.add(page, namespace=ns, document_id="menu", media_type="text/html")
    assert {each.id for each in sluice.rag.list(ns)} == {"hours", "menu"}
    assert ns in sluice.rag.namespaces()
    assert sluice.rag.get("hours", ns).title == "Hours"
    assert sluice.rag.text("hours", ns, start=4, end=10) == "office"
    found = sluice.rag.search("when does the office open", namespace=ns, top_k=3)
    assert found.hits[0].document_id == "hours"
    assert "nine" in found.hits[0].quote
    sluice.rag.delete("hours", ns)
    with pytest.raises(NotFound):
        sluice.rag.get("hours", ns)
    with pytest.raises((Invalid, JobFailed)):
        sluice.rag.add(b"%PDF-1.4 no", namespace=ns, media_type="application/pdf")


def test_a_read_token_reads_one_job(connect_to_site: Connect, site: Site, sluice: Any) -> None:
    handle, other = sluice.submit("chat", {"text": "a"}), sluice.submit("chat", {"text": "b"})
    created = sluice.create_token(job_id=handle.id, ttl_s=60)
    assert created.expires_ts <= (time.time() + 60) * 1000
    assert created.token not in repr(created)
    reader = connect_to_site(site.url, created.token)
    assert reader.job(handle.id).wait(60).status == "done"
    assert [event.type for event in reader.job(handle.id).stream()][-1] == "done"
    with pytest.raises(NotAllowed) as raised:
        reader.job(other.id).get()
    assert raised.value.code == "token_mismatch"
    with pytest.raises(NotFound):
        sluice.create_token(workflow_job_id="wf_20000101_001")
    with pytest.raises(Invalid):
        sluice.create_token()


def test_key_scopes_are_enforced(connect_to_site: Connect, site: Site, sluice: Any) -> None:
    created = sluice.request("POST", "/v1/keys", body={"name": "r", "scopes": ["jobs:read"]})
    reader = connect_to_site(site.url, created["key"])
    me = reader.whoami()
    assert (me.name, list(me.scopes), me.key_id) == ("r", ["jobs:read"], created["key_id"])
    with pytest.raises(NotAllowed) as raised:
        reader.submit("chat", {"text": "a"})
    assert raised.value.code == "insufficient_scope"
    with pytest.raises(NotAllowed) as raised:
        connect_to_site(site.url, "sluice_nonsense").whoami()
    assert raised.value.status == 401
    # A refused stream is not retried.
    with pytest.raises(NotAllowed):
        list(connect_to_site(site.url, "sluice_nonsense").job("x").stream())
