"""A Redis, a gateway and workers as processes, with an HTTP client for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.support.processes import commands
from tests.support.processes.base import Processes, Spawn
from tests.support.processes.worker import ROOT, spawner, wait_until
from tests.support.servers import SYSTEM, RealServer, require_binary

TIMEOUT_S = 60.0
ENDED = ("done", "error", "canceled")
QUEUE = "videos"
HANDLERS = "tests.browser.support.handlers,release_notes"


class LiveServer(Processes):
    """A gateway and a worker for all kinds of jobs."""

    WORKER: ClassVar[dict[str, object]] = {
        "lease_ms": 30_000,
        "block_ms": 100,
        "bullmq_queues": QUEUE,
        "bullmq_name_map": "render=chat",
    }

    def __init__(self, redis: RealServer, spawn: Spawn, directory: Path, **settings: str) -> None:
        super().__init__(redis.url, spawn, directory, bullmq_add_queues=QUEUE, **settings)
        self.redis = redis

    # -- HTTP client -----------------------------------------------------------------------

    def ask(
        self, method: str, path: str, body: Any = None, key: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and parsed body of the response. A `body` of bytes is sent as is, else as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        kind = "content" if isinstance(body, bytes) else "json"
        given = {} if body is None else {kind: body}
        answer = self.gateway.http.request(method, path, headers=sent, **given)
        return answer.status_code, _parse_json(answer.content)

    def create_key(self, *options: str) -> str:
        """The new API key. The command needs none, unlike the gateway with AUTH=required."""
        created = commands.run("key", "create", *options, REDIS_URL=self.redis.url)
        assert created.code == 0, created.err
        return created.out.strip()

    def submit(self, task: str, payload: dict[str, Any], **options: Any) -> str:
        key = options.pop("key", None)
        status, response = self.ask(
            "POST", "/v1/jobs", {"task": task, "payload": payload, **options}, key
        )
        assert status in (200, 202), response
        return str(response["job_id"])

    def get_job(self, job_id: str) -> dict[str, Any]:
        status, response = self.ask("GET", f"/v1/jobs/{job_id}")
        assert status == 200, response
        job: dict[str, Any] = response
        return job

    def wait_for_status(self, job_id: str, *statuses: str) -> dict[str, Any]:
        wait_until(lambda: self.get_job(job_id)["status"] in statuses, TIMEOUT_S)
        return self.get_job(job_id)

    def wait_until_ended(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.wait_for_status(job_id, *ENDED)

    def start_workflow(self, log: str) -> str:
        """Start a workflow and wait for its review; returns its id."""
        body = {
            "workflow": "release_notes_v1",
            "auto_advance": True,
            "steps": {"collect": {"log": log}, "publish": {"version": "1.3"}},
        }

        def create() -> str | None:
            status, response = self.ask("POST", "/api/workflow/jobs", body)
            # Refused until the worker has registered the workflow.
            assert status in (200, 422, 503), response
            return str(response["job"]["job_id"]) if status == 200 else None

        workflow_id = str(wait_until(create, TIMEOUT_S))
        wait_until(lambda: self.workflow_status(workflow_id) == "waiting_input", TIMEOUT_S)
        return workflow_id

    def workflow_status(self, workflow_id: str) -> str:
        _, response = self.ask("GET", f"/api/workflow/jobs/{workflow_id}/status")
        return str(response["job"]["status"])

    def upload_image(self, data: bytes, content_type: str = "image/jpeg", **options: Any) -> str:
        """Upload an image and wait until it is processed; returns its id."""
        status, response = self.ask("POST", "/v1/images", options)
        assert status == 201, response
        image_id = str(response["image_id"])
        path = f"/v1/images/{image_id}"
        status, _ = self.ask("PUT", f"{path}/upload", data, Content_Type=content_type)
        assert status == 202
        wait_until(lambda: self.ask("GET", path)[1]["status"] in ("processed", "failed"), TIMEOUT_S)
        return image_id


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


@contextmanager
def run_server(
    directory: Path, worker_handlers: str = HANDLERS, **settings: str
) -> Iterator[LiveServer]:
    directory.mkdir(parents=True, exist_ok=True)
    redis = RealServer(require_binary(SYSTEM))
    with contextmanager(spawner)(directory) as spawn:
        server = LiveServer(redis, spawn, directory, **settings)
        try:
            path = f"{ROOT / 'examples' / 'workflow'}:{ROOT}"
            server.worker("w1", worker_handlers=worker_handlers, pythonpath=path)
            yield server
        finally:
            server.close()
            redis.close()
