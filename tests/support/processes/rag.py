"""A gateway and workers for documents, and the workflow that adds terms to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.processes.gateway import GatewayProcess
from tests.support.processes.worker import Process, wait_until

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


class RagProcesses:
    """A gateway and its workers."""

    def __init__(self, gateway: GatewayProcess, start: Callable[..., Process]) -> None:
        self.gateway = gateway
        self.start = start

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """Sends JSON and waits for the end of a job."""
        given = {} if body is None else {"json": body}
        headers = {"Prefer": "wait=20", **headers}
        answer = self.gateway.http.request(method, path, headers=headers, **given)
        return answer.status_code, answer.json() if answer.content else None

    def found(self, query: str, mode: str = "auto") -> list[str]:
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
