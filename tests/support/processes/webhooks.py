"""A receiver of webhooks as a process, and the processes that send them."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tests.support.processes.base import Processes, Spawn
from tests.support.processes.worker import ROOT

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
