"""A Redis, a gateway and a worker of a test file's own, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.backends import SYSTEM, RealServer, require_binary
from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.worker.processes import ROOT, Process, wait_until

PATIENCE_S = 60.0
ENDED = ("done", "error", "canceled")
QUEUE = "videos"
HANDLERS = "tests.browser.handlers,release_notes"


class Site:
    """Everything that shares one Redis and one data directory."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.settings = settings
        self.redis = RealServer(require_binary(SYSTEM))
        self._number = 0
        self._workers: list[Process] = []
        self.gateway = self._gateway("0")

    @property
    def port(self) -> int:
        return self.gateway.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _gateway(self, port: str) -> GatewayProcess:
        self._number += 1
        return GatewayProcess(
            PYTHON_M,
            self.directory / f"gateway{self._number}.log",
            REDIS_URL=self.redis.url,
            PORT=port,
            SLUICE_DATA_DIR=str(self.directory / "data"),
            BULLMQ_ADD_QUEUES=QUEUE,
            **self.settings,
        ).wait_until_listening()

    def kill_gateway(self) -> None:
        """As a power cut does."""
        self.gateway.process.kill()
        self.gateway.process.wait(PATIENCE_S)

    def start_gateway(self) -> None:
        """Again, where it was."""
        self.gateway = self._gateway(str(self.port))

    def worker(self, name: str = "w1", **settings: object) -> Process:
        """One that takes jobs of every door."""
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
        worker.wait_for_line(f"worker {name} takes jobs", PATIENCE_S)
        return worker

    def close(self) -> None:
        self.gateway.close()
        for worker in self._workers:
            worker.kill()
        self.redis.close()

    # -- over HTTP -------------------------------------------------------------------------

    def ask(
        self, method: str, path: str, body: Any = None, key: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and JSON of an answer; `body` as it is where it is bytes, else as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url + path, body, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, _json(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _json(error.read())

    def raw(self, path: str) -> bytes:
        """The bytes of an answer that is no JSON."""
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE_S) as answer:
            found: bytes = answer.read()
        return found

    def submit(self, task: str, payload: dict[str, Any], **more: Any) -> str:
        """A job; its id."""
        key = more.pop("key", None)
        status, answer = self.ask(
            "POST", "/v1/jobs", {"task": task, "payload": payload, **more}, key
        )
        assert status in (200, 202), answer
        return str(answer["job_id"])

    def job(self, job_id: str) -> dict[str, Any]:
        status, answer = self.ask("GET", f"/v1/jobs/{job_id}")
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    def reaches(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """The job, once it stands so."""
        wait_until(lambda: self.job(job_id)["status"] in statuses, PATIENCE_S)
        return self.job(job_id)

    def ended(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.reaches(job_id, *ENDED)

    def workflow(self, log: str) -> str:
        """A workflow that waits for a person; its id."""
        body = {
            "workflow": "release_notes_v1",
            "auto_advance": True,
            "steps": {"collect": {"log": log}, "publish": {"version": "1.3"}},
        }

        def made() -> str | None:
            status, answer = self.ask("POST", "/api/workflow/jobs", body)
            assert status in (200, 422, 503), answer  # until the worker has declared it
            return str(answer["job"]["job_id"]) if status == 200 else None

        workflow_id = str(wait_until(made, PATIENCE_S))
        wait_until(lambda: self.workflow_status(workflow_id) == "waiting_input", PATIENCE_S)
        return workflow_id

    def workflow_status(self, workflow_id: str) -> str:
        _, answer = self.ask("GET", f"/api/workflow/jobs/{workflow_id}/status")
        return str(answer["job"]["status"])

    def image(self, data: bytes, content_type: str = "image/jpeg", **wishes: Any) -> str:
        """An image that is processed; its id."""
        status, answer = self.ask("POST", "/v1/images", wishes)
        assert status == 201, answer
        image_id = str(answer["image_id"])
        path = f"/v1/images/{image_id}"
        status, _ = self.ask("PUT", f"{path}/upload", data, Content_Type=content_type)
        assert status == 202
        wait_until(
            lambda: self.ask("GET", path)[1]["status"] in ("processed", "failed"), PATIENCE_S
        )
        return image_id


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


@contextmanager
def running(directory: Path, worker_handlers: str = HANDLERS, **settings: str) -> Iterator[Site]:
    """A site with one worker."""
    directory.mkdir(parents=True, exist_ok=True)
    site = Site(directory, **settings)
    try:
        site.worker(worker_handlers=worker_handlers)
        yield site
    finally:
        site.close()
