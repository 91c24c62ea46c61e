"""Real gateways and workers of the features: images, workflows, webhooks and documents."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import redis

from tests.support.processes.base import Processes, Spawn
from tests.support.processes.gateway import GatewayProcess
from tests.support.processes.worker import ROOT, Process, wait_until

# -- images ------------------------------------------------------------------------------------


#: Stages in order, with their progress.
STAGES = {
    "queued": 0, "validating": 10, "decoding": 30, "processing": 55, "encoding": 75,
    "uploading": 90, "done": 100,
}  # fmt: skip

#: Handlers of a worker that waits for a file before it processes images.
SLOW_IMAGES = """
from tests.support.worker import image_processes
from sluice.worker.features.images import processor

processor.process = image_processes.wait_for_go

def register(registry):
    pass
"""


class ImageProcesses(Processes):
    """A gateway and any number of workers; spool and store are below one directory."""

    WORKER: ClassVar[dict[str, object]] = {
        "image_reconcile_s": 0.3, "image_parallel": 2, "retry_backoff_s": 0.05,
    }  # fmt: skip

    def __init__(self, redis_url: str, spawn: Spawn, directory: Path, **settings: str) -> None:
        super().__init__(redis_url, spawn, directory, **settings)
        self._images = directory / "data" / "images"
        self.client: Any = redis.Redis.from_url(redis_url)
        (directory / "slow_images.py").write_text(SLOW_IMAGES)

    def close(self) -> None:
        super().close()
        self.client.close()

    # -- over HTTP -------------------------------------------------------------------------

    def create(self, **options: Any) -> str:
        answer = self.request("POST", "/v1/images", options)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["image_id"])

    def put(self, image_id: str, data: bytes, content_type: str = "image/jpeg") -> int:
        headers = {"Content-Type": content_type}
        return self.request(
            "PUT", f"/v1/images/{image_id}/upload", data, headers=headers
        ).status_code

    def upload(self, data: bytes, content_type: str = "image/jpeg") -> str:
        image_id = self.create()
        assert self.put(image_id, data, content_type) == 202
        return image_id

    def image(self, image_id: str) -> dict[str, Any]:
        answer = self.request("GET", f"/v1/images/{image_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def ended(self, image_id: str) -> dict[str, Any]:
        wait_until(lambda: self.image(image_id)["status"] in ("processed", "failed"))
        return self.image(image_id)

    # -- contents of Redis and of the disk -----------------------------------------------------

    def record(self, image_id: str) -> dict[str, str]:
        found = self.client.hgetall(f"image:status:{image_id}")
        return {name.decode(): value.decode() for name, value in found.items()}

    def entries(self, image_id: str) -> list[dict[str, str]]:
        entries = [
            {name.decode(): value.decode() for name, value in fields.items()}
            for _, fields in self.client.xrange("image:result")
        ]
        return [entry for entry in entries if entry["image_id"] == image_id]

    def has_no_pending_jobs(self) -> bool:
        return bool(self.client.xpending("jobs:stream", "workers")["pending"] == 0)

    def spooled(self) -> list[str]:
        directory = self._images / "spool"
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else []

    def stored(self, image_id: str) -> bytes | None:
        path = self._images / "store" / "images" / f"{image_id}.webp"
        return path.read_bytes() if path.exists() else None

    def go(self) -> None:
        """Lets slow workers continue."""
        (self._images / "go").touch()

    def wait_for_starts(self, count: int = 1) -> None:
        wait_until(lambda: len(list(self._images.glob("began-*"))) >= count)

    def check_complete(self, image_id: str) -> dict[str, Any]:
        """The image has ended successfully, and all records of it agree."""
        image = self.ended(image_id)
        assert image["status"] == "processed", image
        [entry] = self.entries(image_id)
        assert (entry["status"], len(entry)) == ("processed", 12)
        stored = self.stored(image_id)
        assert stored is not None
        assert entry["sha256"] == image["sha256"] == hashlib.sha256(stored).hexdigest()
        assert entry["etag"] == image["etag"] == hashlib.md5(stored).hexdigest()
        assert int(entry["file_size"]) == image["file_size"] == len(stored)
        content = self.request("GET", f"/v1/images/{image_id}/content")
        assert (content.status_code, content.content) == (200, stored)
        assert content.headers["content-type"] == "image/webp"
        assert self.record(image_id)["stage"] == "done"
        wait_until(lambda: self.spooled() == [])
        assert self.client.zcard("image:inflight") == 0
        return image


# -- workflows ---------------------------------------------------------------------------------


#: Steps that record when they run and wait for a file before they end.
FLOW = """
import asyncio
from pathlib import Path

from sluice.common.contracts.workflow.statuses import StepKind
from sluice.common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from sluice.worker.features.workflows.output import StepItem, StepOutput

HERE = Path(__file__).parent

def note(words):
    with (HERE / "notes").open("a") as notes:
        notes.write(words + "\\n")

async def opened(gate):
    while not (HERE / gate).exists():
        await asyncio.sleep(0.01)

async def slow(context):
    await context.progress(1, 2)
    note(f"slow {context.attempt}")
    await opened("gate")
    await context.progress(2, 2)
    return StepOutput("slow", [StepItem({"attempt": context.attempt})])

async def suggest(context):
    return StepOutput("two", [StepItem({"to": str(n)}, "proposed", 0.5) for n in (1, 2)])

async def last(context):
    found = [item.status.value for item in await context.items("suggest")]
    return StepOutput(" ".join(found))

def flow(name, **steps):
    names = list(steps)
    declared = []
    for at, step in enumerate(names):
        kind = {"kind": StepKind.REVIEW, "reviews": names[at - 1]} if step == "review" else {}
        weight = 1 - (len(names) - 1) * 0.1 if at == 0 else 0.1
        kind |= {"proposes": True} if step == "suggest" else {}
        declared.append(StepDefinition(step, step[:3], step, weight, **kind))
    work = {step: function for step, function in steps.items() if function}
    return WorkflowDefinition(name, tuple(declared)), work

def register_workflows(workflows):
    workflows.add(*flow("slow_v1", slow=slow, suggest=suggest, review=None, last=last))
"""


class WorkflowProcesses(Processes):
    """A gateway and any number of workers with the workflows above."""

    WORKER: ClassVar[dict[str, object]] = {
        "worker_handlers": "crash_flow", "workflow_reconcile_s": 0.3, "log_level": "debug",
    }  # fmt: skip

    def __init__(self, redis_url: str, spawn: Spawn, directory: Path, **settings: str) -> None:
        super().__init__(redis_url, spawn, directory, **settings)
        (directory / "crash_flow.py").write_text(FLOW)

    # -- over HTTP -------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        answer = self.request(method, f"/api/workflow/jobs{path}", body)
        return answer.status_code, answer.json()

    def create(self, workflow: str, **more: Any) -> str:
        """Creates a job that advances automatically, once the gateway knows its workflow."""
        body = {"workflow": workflow, "auto_advance": True, **more}

        def made() -> str | None:
            status, answer = self.ask("POST", "", body)
            assert status in (200, 422, 503), answer
            return str(answer["job"]["job_id"]) if status == 200 else None

        return str(wait_until(made))

    def status(self, job_id: str) -> dict[str, Any]:
        status, answer = self.ask("GET", f"/{job_id}/status")
        assert status == 200, answer
        job: dict[str, Any] = answer["job"]
        return job

    def wait_for_status(self, job_id: str, *statuses: str) -> dict[str, Any]:
        wait_until(lambda: self.status(job_id)["status"] in statuses)
        return self.status(job_id)

    def items(self, job_id: str, step: str) -> list[dict[str, Any]]:
        status, answer = self.ask("GET", f"/{job_id}/results?step={step}&limit=500")
        assert status == 200, answer
        found: list[dict[str, Any]] = answer["result"]["items"]
        return found

    def event_log(self, job_id: str) -> list[str]:
        """Its events except progress, each as `type step`; their numbers must have no gap."""
        status, answer = self.ask("GET", f"/{job_id}/events?limit=500")
        assert status == 200, answer
        events = answer["events"]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        return [
            f"{event['type']} {event['step'] or ''}".strip()
            for event in events
            if event["type"] != "step.progress"
        ]

    # -- output of the steps -------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        path = self.directory / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_note(self, words: str) -> None:
        wait_until(lambda: words in self.notes)

    def open_gate(self) -> None:
        """Lets the steps end."""
        (self.directory / "gate").touch()


# -- webhooks ----------------------------------------------------------------------------------


#: Timeout of one attempt: longer than a stall of the machine.
ATTEMPT_TIMEOUT_S = 5


class ReceiverProcess:
    """`tests.support.webhook_receiver` and its recorded requests."""

    def __init__(self, directory: Path, script: dict[str, list[Any]]) -> None:
        self._record = directory / "received.jsonl"
        answers = directory / "script.json"
        answers.write_text(json.dumps(script))
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.webhook_receiver",
                str(answers),
                str(self._record),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def got(self, path: str) -> list[dict[str, Any]]:
        if not self._record.exists():
            return []
        lines = [json.loads(line) for line in self._record.read_text().splitlines()]
        return [line for line in lines if line["path"] == path]

    def bodies(self, path: str) -> list[bytes]:
        return [base64.b64decode(line["body"]) for line in self.got(path)]

    def types(self, path: str) -> list[str]:
        return [json.loads(body)["event_type"] for body in self.bodies(path)]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


class WebhookProcesses(Processes):
    """A gateway, workers and receivers."""

    WORKER: ClassVar[dict[str, object]] = {
        "workflow_webhook_timeout_seconds": ATTEMPT_TIMEOUT_S,
        "workflow_webhook_retry_backoff_seconds": 0.1,
        "workflow_webhook_max_retries": 2,
        "heartbeat_s": 0.3,
        "lease_ms": 30_000,
    }

    def __init__(self, redis_url: str, spawn: Spawn, directory: Path) -> None:
        allowed = {"workflow_webhook_allowed_hosts": "127.0.0.1"}
        super().__init__(redis_url, spawn, directory, **allowed)
        self.file = directory / "logs" / "dead.jsonl"
        self._settings["workflow_webhook_dlq_path"] = str(self.file)
        self._closers: list[Callable[[], None]] = []

    def receiver(self, script: dict[str, list[Any]]) -> ReceiverProcess:
        receiver = ReceiverProcess(self.directory, script)
        self._closers.append(receiver.close)
        return receiver

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self.request(method, f"/api/workflow{path}", body)
        assert answer.is_success, answer.text
        return answer.json()

    def job(self, url: str) -> str:
        job_id: str = self.call("POST", "/jobs", {"webhook_url": url})["job"]["job_id"]
        return job_id

    def webhook(self, job_id: str) -> Any:
        return self.call("GET", f"/jobs/{job_id}/status")["job"]["webhook"]

    def lines(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def close(self) -> None:
        super().close()
        for closer in self._closers:
            closer()


def unreachable_url() -> str:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}/"


# -- documents ---------------------------------------------------------------------------------


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
