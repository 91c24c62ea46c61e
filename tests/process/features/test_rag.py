"""Documents from upload to answer, and a workflow that adds terms; with real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.processes.gateway import StartGateway
from tests.support.processes.rag import MANUAL, OTHER, RagProcesses
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
SLOW = pytest.mark.slow("starts a gateway and workers")

HOURS = (
    "# Opening hours\n\nThe office opens at nine.\n\n## Weekends\n\nOn Sundays it stays closed.\n"
)
PAGE = (
    "<html><title>Menu</title><body><p>Today there is pea soup.</p><script>x</script></body></html>"
)


@pytest.fixture
def rag(
    server: RealServer, spawn: Callable[..., Process], start_gateway: StartGateway
) -> RagProcesses:
    def start(**settings: object) -> Process:
        usual = {"redis_url": server.url, "block_ms": 50, "embedder": "off", "lease_ms": 1000}
        return spawn("worker", **usual, **settings)

    return RagProcesses(start_gateway(server.url), start)


def upload(
    rag: RagProcesses, method: str, path: str, body: bytes | None = None, content_type: str = ""
) -> tuple[int, Any]:
    headers = {"Prefer": "wait=20", **({"Content-Type": content_type} if content_type else {})}
    answer = rag.gateway.http.request(method, path, content=body, headers=headers)
    try:
        return answer.status_code, answer.json()
    except ValueError:
        return answer.status_code, answer.text


def test_documents_from_upload_to_answer(rag: RagProcesses, server: RealServer) -> None:
    rag.start()
    documents = "/v1/rag/default/documents"
    status, created = upload(
        rag, "POST", f"{documents}?id=hours.md", HOURS.encode(), "text/markdown"
    )
    assert (status, created["document_id"], created["replaced"]) == (201, "hours.md", False), (
        created
    )
    as_json = {"id": "menu", "text": PAGE, "media_type": "text/html"}
    status, created = upload(
        rag, "POST", documents, json.dumps(as_json).encode(), "application/json"
    )
    assert status == 201, created
    assert server.client.keys("rag.upload:*") == []

    status, found = upload(
        rag, "GET", f"/v1/rag/default/search?q={quote('closed on sunday?')}&answer=true"
    )
    assert (status, found["mode"]) == (200, "lexical"), found
    assert found["text"]
    assert found["citations"]
    for passage in (*found["hits"], *found["citations"]):
        span = f"start={passage['start']}&end={passage['end']}"
        quoted = upload(rag, "GET", f"{documents}/{passage['document_id']}/text?{span}")
        assert quoted == (200, passage["quote"])
    assert found["hits"][0]["document_id"] == "hours.md"
    assert "Sundays" in found["citations"][0]["quote"]

    status, found = upload(rag, "GET", "/v1/rag/default/search?q=soup")
    assert [hit["document_id"] for hit in found["hits"]] == ["menu"]
    assert upload(rag, "DELETE", f"{documents}/menu") == (204, "")
    assert upload(rag, "GET", "/v1/rag/default/search?q=soup")[1]["hits"] == []
    assert upload(rag, "DELETE", f"{documents}/menu")[0] == 404
    listed = upload(rag, "GET", documents)[1]
    assert [item["id"] for item in listed["items"]] == ["hours.md"]


# -- terms of a workflow -------------------------------------------------------------------------


@SLOW
def test_apply_changes_search_results_and_undo_restores_them(
    rag: RagProcesses, server: RealServer
) -> None:
    rag.start()
    rag.add("manual", MANUAL)
    rag.add("other", OTHER)
    job_id = rag.reviewed()
    for mode in ("auto", "lexical"):
        assert rag.found("DLQ", mode) == []
    before = untouched(server)

    rag.execute(job_id, "apply")
    assert "DLQ" in rag.terms()["dead letter queue"]
    for mode in ("auto", "lexical"):
        assert rag.found("DLQ", mode) == ["Glossary", "Operations", "manual"]
    assert "Glossary" in rag.found("dead%20letter%20queue")
    assert {item["status"] for item in rag.items(job_id, "proposals")} == {"applied"}
    rag.execute(job_id, "analytics")
    coverage = next(
        item["payload"]
        for item in rag.items(job_id, "analytics")
        if item["payload"]["metric"] == "coverage_sources"
    )
    assert coverage["value"] == 1.0
    assert rag.job(job_id)["status"] == "completed"

    [about, *_] = rag.items(job_id, "apply")
    token = about["payload"]["undo_token"]
    assert rag.job(job_id)["undo"]["last_undo_token"] == token
    status, undone = rag.undo(job_id, token)
    assert status == 200, undone
    assert rag.terms() == {}
    for mode in ("auto", "lexical"):
        assert rag.found("DLQ", mode) == []
    assert rag.found("sunday") == ["other"]
    assert untouched(server) == before
    assert {item["status"] for item in rag.items(job_id, "proposals")} == {"approved"}
    assert rag.undo(job_id, token)[0] == 404


def untouched(server: RealServer) -> set[bytes]:
    """Keys of documents and terms."""
    return set(server.client.keys("rag*"))


@SLOW
@pytest.mark.parametrize("times", [2, 4])
def test_another_worker_continues_after_a_crash(
    rag: RagProcesses, server: RealServer, times: int
) -> None:
    """It dies after the first of two documents is stored, and after the terms are changed."""
    first = rag.start()
    rag.add("manual", MANUAL)
    job_id = rag.reviewed()
    before = untouched(server)
    first.kill()
    dying = rag.start(SLUICE_CRASH_AT=f"after_effect:{times}")
    path = f"/api/workflow/jobs/{job_id}/steps/apply/execute"
    assert rag.ask("POST", path, {"wait_s": 0})[0] == 202
    assert dying.wait(40) == -9
    rag.start()
    wait_until(lambda: rag.status(job_id, "apply") in ("complete", "failed"), 60)
    assert rag.status(job_id, "apply") == "complete"
    assert rag.found("DLQ") == ["Glossary", "Operations", "manual"]
    [about, *_] = rag.items(job_id, "apply")
    assert (about["payload"]["documents"], about["payload"]["documents_known"]) == (2, 0)
    assert rag.undo(job_id, about["payload"]["undo_token"])[0] == 200
    assert untouched(server) == before
