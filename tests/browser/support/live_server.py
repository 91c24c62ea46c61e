"""A Redis, a gateway and workers as processes, with an HTTP client for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes.gateway import PYTHON_M, GatewayProcess
from tests.support.processes.worker import ROOT, Process, wait_until
from tests.support.servers import SYSTEM, RealServer, require_binary

TIMEOUT_S = 60.0
ENDED = ("done", "error", "canceled")
QUEUE = "videos"
HANDLERS = "tests.browser.support.handlers,release_notes"


class LiveServer:
    """A Redis, a gateway and workers that share a data directory."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.settings = settings
        self.redis = RealServer(require_binary(SYSTEM))
        self._gateway_count = 0
        self._workers: list[Process] = []
        self.gateway = self._launch_gateway("0")

    @property
    def port(self) -> int:
        return self.gateway.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _launch_gateway(self, port: str) -> GatewayProcess:
        self._gateway_count += 1
        return GatewayProcess(
            PYTHON_M,
            self.directory / f"gateway{self._gateway_count}.log",
            REDIS_URL=self.redis.url,
            PORT=port,
            SLUICE_DATA_DIR=str(self.directory / "data"),
            BULLMQ_ADD_QUEUES=QUEUE,
            **self.settings,
        ).wait_until_listening()

    def kill_gateway(self) -> None:
        """Kill the gateway with SIGKILL."""
        self.gateway.process.kill()
        self.gateway.process.wait(TIMEOUT_S)

    def start_gateway(self) -> None:
        """Start the gateway again on the same port."""
        self.gateway = self._launch_gateway(str(self.port))

    def start_worker(self, name: str = "w1", **settings: object) -> Process:
        """Start a worker for all kinds of jobs, and wait until it is ready."""
        folders = [str(ROOT / "examples" / "workflow"), str(ROOT)]
        worker = Process(
            "worker",
            self.directory / f"worker{len(self._workers)}.log",
            **{
                "redis_url": self.redis.url,
                "consumer": name,
                "block_ms": 100,
                "embedder": "off",
                "sluice_data_dir": str(self.directory / "data"),
                "worker_handlers": HANDLERS,
                "pythonpath": ":".join(folders),
                "image_detector": "none",
                "bullmq_queues": QUEUE,
                "bullmq_name_map": "render=chat",
                **self.settings,
                **settings,
            },
        )
        self._workers.append(worker)
        worker.wait_for_line(f"worker {name} takes jobs", TIMEOUT_S)
        return worker

    def close(self) -> None:
        self.gateway.close()
        for worker in self._workers:
            worker.kill()
        self.redis.close()

    # -- HTTP client -----------------------------------------------------------------------

    def request(
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

    def submit(self, task: str, payload: dict[str, Any], **options: Any) -> str:
        """Submit a job; returns its id."""
        key = options.pop("key", None)
        status, response = self.request(
            "POST", "/v1/jobs", {"task": task, "payload": payload, **options}, key
        )
        assert status in (200, 202), response
        return str(response["job_id"])

    def get_job(self, job_id: str) -> dict[str, Any]:
        status, response = self.request("GET", f"/v1/jobs/{job_id}")
        assert status == 200, response
        job: dict[str, Any] = response
        return job

    def wait_for_status(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """Wait until the job has one of the statuses; returns the job."""
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
            status, response = self.request("POST", "/api/workflow/jobs", body)
            # Refused until the worker has registered the workflow.
            assert status in (200, 422, 503), response
            return str(response["job"]["job_id"]) if status == 200 else None

        workflow_id = str(wait_until(create, TIMEOUT_S))
        wait_until(lambda: self.workflow_status(workflow_id) == "waiting_input", TIMEOUT_S)
        return workflow_id

    def workflow_status(self, workflow_id: str) -> str:
        _, response = self.request("GET", f"/api/workflow/jobs/{workflow_id}/status")
        return str(response["job"]["status"])

    def upload_image(self, data: bytes, content_type: str = "image/jpeg", **options: Any) -> str:
        """Upload an image and wait until it is processed; returns its id."""
        status, response = self.request("POST", "/v1/images", options)
        assert status == 201, response
        image_id = str(response["image_id"])
        path = f"/v1/images/{image_id}"
        status, _ = self.request("PUT", f"{path}/upload", data, Content_Type=content_type)
        assert status == 202
        wait_until(
            lambda: self.request("GET", path)[1]["status"] in ("processed", "failed"), TIMEOUT_S
        )
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
    """A server with one worker."""
    directory.mkdir(parents=True, exist_ok=True)
    server = LiveServer(directory, **settings)
    try:
        server.start_worker(worker_handlers=worker_handlers)
        yield server
    finally:
        server.close()
