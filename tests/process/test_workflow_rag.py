"""A workflow adds terms to `rag`, and an undo removes them; with real processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.support.backends import RealServer
from tests.worker.processes import Process, wait_until

#: Contains the full term; exists before the workflow.
MANUAL = (
    "When a job fails too often, its message goes to the dead letter queue. A person looks at it."
)
OTHER = "The office opens at nine. On Sundays it stays closed."
SOURCES = [
    {
        "type": "text",
        "title": "Glossary",
        "text": "# Glossary\n\nThe Dead Letter Queue (DLQ) keeps what nobody could handle.\n"
        "The DLQ is capped. A message in the DLQ can be sent again.\n",
    },
    {
        "type": "text",
        "title": "Operations",
        "text": "# Operations\n\nThe dead letter queue fills when a model server is down. "
        "Look at the Dead Letter Queue (DLQ) each morning.\n",
    },
]


class Site:
    """A gateway and its workers."""

    def __init__(self, url: str, start: Callable[..., Process]) -> None:
        self.url = url
        self.start = start

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Prefer": "wait=20", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def found(self, query: str, mode: str = "auto") -> list[str]:
        """Titles of the documents that a search finds."""
        _, answer = self.ask("GET", f"/v1/rag/notes/search?q={query}&mode={mode}")
        return sorted({hit["title"] for hit in answer["hits"]})

    def add(self, title: str, text: str) -> None:
        body = {"id": title, "title": title, "text": text}
        assert self.ask("POST", "/v1/rag/notes/documents", body)[0] == 201

    def terms(self) -> dict[str, list[str]]:
        _, answer = self.ask("GET", "/v1/rag/notes/ontology")
        return {item["term"].lower(): item["aliases"] for item in answer["items"]}

    def reviewed(self) -> str:
        """Creates a job and approves all proposals; returns its id."""
        body = {"namespace": "notes", "sources": SOURCES}
        status, made = self.ask("POST", "/api/workflow/jobs", body)
        assert status == 200, made
        job_id: str = made["job"]["job_id"]
        self.execute(job_id, "proposals")
        self.ask("POST", f"/api/workflow/jobs/{job_id}/steps/review/execute", {})
        bulk = f"/api/workflow/jobs/{job_id}/proposals/bulk"
        status, decided = self.ask("POST", bulk, {"action": "approve", "all": True})
        assert (status, decided["success"]) == (200, True), decided
        assert self.status(job_id, "review") == "complete"
        return job_id

    def execute(self, job_id: str, step: str) -> None:
        path = f"/api/workflow/jobs/{job_id}/steps/{step}/execute"
        status, answer = self.ask("POST", path, {"wait_s": 30})
        assert status in (200, 202), answer
        wait_until(lambda: self.status(job_id, step) in ("complete", "failed"), 60)
        assert self.status(job_id, step) == "complete", self.ask(
            "GET", f"/api/workflow/jobs/{job_id}/status"
        )

    def job(self, job_id: str) -> Any:
        return self.ask("GET", f"/api/workflow/jobs/{job_id}/status")[1]["job"]

    def status(self, job_id: str, step: str) -> str:
        return next(each["status"] for each in self.job(job_id)["stepper"] if each["name"] == step)

    def items(self, job_id: str, step: str) -> list[Any]:
        path = f"/api/workflow/jobs/{job_id}/results?step={step}&limit=500"
        items: list[Any] = self.ask("GET", path)[1]["result"]["items"]
        return items

    def undo(self, job_id: str, token: str) -> tuple[int, Any]:
        return self.ask("POST", f"/api/workflow/jobs/{job_id}/undo", {"undo_token": token})


@pytest.fixture
def site(server: RealServer, spawn: Callable[..., Process], tmp_path: Path) -> Iterator[Site]:
    gateway = GatewayProcess(PYTHON_M, tmp_path / "gateway.log", REDIS_URL=server.url, PORT="0")

    def start(**settings: object) -> Process:
        usual = {"REDIS_URL": server.url, "BLOCK_MS": 50, "EMBEDDER": "off", "LEASE_MS": 1000}
        return spawn("worker", **usual, **settings)

    try:
        yield Site(f"http://127.0.0.1:{gateway.wait_until_listening().port}", start)
    finally:
        gateway.close()


def test_apply_changes_search_results_and_undo_restores_them(
    site: Site, server: RealServer
) -> None:
    site.start()
    site.add("manual", MANUAL)
    site.add("other", OTHER)
    job_id = site.reviewed()
    for mode in ("auto", "lexical"):
        assert site.found("DLQ", mode) == []
    before = untouched(server)

    site.execute(job_id, "apply")
    assert "DLQ" in site.terms()["dead letter queue"]
    for mode in ("auto", "lexical"):
        assert site.found("DLQ", mode) == ["Glossary", "Operations", "manual"]
    assert "Glossary" in site.found("dead%20letter%20queue")
    assert {item["status"] for item in site.items(job_id, "proposals")} == {"applied"}
    site.execute(job_id, "analytics")
    coverage = next(
        item["payload"]
        for item in site.items(job_id, "analytics")
        if item["payload"]["metric"] == "coverage_sources"
    )
    assert coverage["value"] == 1.0
    assert site.job(job_id)["status"] == "completed"

    [about, *_] = site.items(job_id, "apply")
    token = about["payload"]["undo_token"]
    assert site.job(job_id)["undo"]["last_undo_token"] == token
    status, undone = site.undo(job_id, token)
    assert status == 200, undone
    assert site.terms() == {}
    for mode in ("auto", "lexical"):
        assert site.found("DLQ", mode) == []
    assert site.found("sunday") == ["other"]
    assert untouched(server) == before
    assert {item["status"] for item in site.items(job_id, "proposals")} == {"approved"}
    assert site.undo(job_id, token)[0] == 404


def untouched(server: RealServer) -> set[bytes]:
    """Keys of documents and terms."""
    return set(server.client.keys("rag*"))


def test_an_undo_keeps_later_manual_changes(site: Site) -> None:
    site.start()
    site.add("other", OTHER)
    job_id = site.reviewed()
    site.execute(job_id, "apply")
    [about, *_] = site.items(job_id, "apply")
    theirs = about["payload"]["document_ids"][0]
    body = {"id": theirs, "title": "Mine", "text": "I have written this anew."}
    assert site.ask("POST", "/v1/rag/notes/documents", body)[0] == 201
    status, answer = site.undo(job_id, about["payload"]["undo_token"])
    assert (status, answer["errors"][0]["code"]) == (409, "undo_conflict"), answer
    assert theirs in json.dumps(answer)
    assert "DLQ" in site.terms()["dead letter queue"]
    assert site.found("written") == ["Mine"]


@pytest.mark.parametrize("times", [2, 4])
def test_another_worker_continues_after_a_crash(site: Site, server: RealServer, times: int) -> None:
    """It dies after the first of two documents is stored, and after the terms are changed."""
    first = site.start()
    site.add("manual", MANUAL)
    job_id = site.reviewed()
    before = untouched(server)
    first.kill()
    dying = site.start(SLUICE_CRASH_AT=f"after_effect:{times}")
    path = f"/api/workflow/jobs/{job_id}/steps/apply/execute"
    assert site.ask("POST", path, {"wait_s": 0})[0] == 202
    assert dying.wait(40) == -9
    site.start()
    wait_until(lambda: site.status(job_id, "apply") in ("complete", "failed"), 60)
    assert site.status(job_id, "apply") == "complete"
    assert site.found("DLQ") == ["Glossary", "Operations", "manual"]
    [about, *_] = site.items(job_id, "apply")
    assert (about["payload"]["documents"], about["payload"]["documents_known"]) == (2, 0)
    assert site.undo(job_id, about["payload"]["undo_token"])[0] == 200
    assert untouched(server) == before
