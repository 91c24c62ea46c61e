"""Webhooks between real processes: gateway, workers and a receiver, with failures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from common.process.crashpoints import CRASH_VARIABLE, CrashPoint
from tests.gateway.processes import PYTHON_M, ROOT, GatewayProcess
from tests.support.backends import RealServer
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process
SECRET = "a secret of the receiver's"
#: Timeout of one attempt: longer than a stall of the machine.
TIMEOUT_S = 5
Spawn = Callable[..., Process]


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


class WebhookProcesses:
    """A gateway, workers and receivers."""

    def __init__(self, server: RealServer, directory: Path, spawn: Spawn) -> None:
        self.server = server
        self._dir = directory
        self._spawn = spawn
        self.file = directory / "logs" / "dead.jsonl"
        self._closers: list[Callable[[], None]] = []
        settings = {"REDIS_URL": server.url, "PORT": "0"}
        self.gateway = GatewayProcess(
            PYTHON_M,
            directory / "gateway.log",
            WORKFLOW_WEBHOOK_ALLOWED_HOSTS="127.0.0.1",
            **settings,
        )
        self._closers.append(self.gateway.close)
        self.gateway.wait_until_listening()

    def receiver(self, script: dict[str, list[Any]]) -> ReceiverProcess:
        receiver = ReceiverProcess(self._dir, script)
        self._closers.append(receiver.close)
        return receiver

    def worker(self, **settings: object) -> Process:
        values: dict[str, object] = {
            "redis_url": self.server.url,
            "workflow_webhook_allowed_hosts": "127.0.0.1",
            "workflow_webhook_secret": SECRET,
            "workflow_webhook_timeout_seconds": TIMEOUT_S,
            "workflow_webhook_retry_backoff_seconds": 0.1,
            "workflow_webhook_max_retries": 2,
            "workflow_webhook_dlq_path": self.file,
            "heartbeat_s": 0.3,
            **settings,
        }
        return self._spawn("worker", **values)

    def call(self, method: str, path: str, body: object = None) -> Any:
        raw = None if body is None else json.dumps(body).encode()
        request = Request(
            f"http://127.0.0.1:{self.gateway.port}/api/workflow{path}",
            raw,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise AssertionError(error.read()) from None

    def job(self, url: str) -> str:
        job_id: str = self.call("POST", "/jobs", {"webhook_url": url})["job"]["job_id"]
        return job_id

    def webhook(self, job_id: str) -> Any:
        return self.call("GET", f"/jobs/{job_id}/status")["job"]["webhook"]

    def dead_letters(self) -> dict[str, Any]:
        items = self.call("GET", "/webhooks/dlq?limit=500")["items"]
        return {item["job_id"]: item for item in items}

    def lines(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def close(self) -> None:
        for closer in self._closers:
            closer()


@pytest.fixture
def processes(server: RealServer, tmp_path: Path, spawn: Spawn) -> Iterator[WebhookProcesses]:
    processes = WebhookProcesses(server, tmp_path, spawn)
    yield processes
    processes.close()


def unreachable_url() -> str:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}/"


def check_signature(line: dict[str, Any]) -> None:
    """As a receiver does it, with only the contract."""
    headers, body = line["headers"], base64.b64decode(line["body"])
    signed = headers["x-workflow-timestamp"].encode() + b"." + body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["x-workflow-signature"] == f"sha256={digest}"
    assert headers["x-workflow-signature-version"] == "v1"
    assert headers["x-workflow-event"] == "job_callback"
    assert abs(int(headers["x-workflow-timestamp"]) - line["at"]) <= 10


def test_receivers_of_every_kind(processes: WebhookProcesses) -> None:
    receiver = processes.receiver(
        {
            "/flaky": [500, 500, 200],
            "/busy": [{"status": 429, "headers": {"Retry-After": "1"}}, 200],
            "/bad": [400, 200],
            "/moved": [{"status": 301, "headers": {"Location": "/target"}}],
            "/hang": ["hang"],
        }
    )
    processes.worker().wait_for_line("takes jobs")
    paths = ("/flaky", "/busy", "/bad", "/moved", "/hang", "/sound")
    jobs = {path: processes.job(receiver.url(path)) for path in paths}
    jobs["nobody"] = processes.job(unreachable_url())
    processes.call("POST", f"/jobs/{jobs['/sound']}/cancel", {})

    # Hanging receivers do not delay others.
    wait_until(lambda: receiver.types("/sound") == ["job.created", "job.cancelled"])
    wait_until(lambda: len(receiver.got("/flaky")) == 3)
    assert len(set(receiver.bodies("/flaky"))) == 1
    wait_until(lambda: len(receiver.got("/busy")) == 2)
    first, second = receiver.got("/busy")
    assert second["at"] - first["at"] > 0.95
    for path in ("/flaky", "/busy", "/sound"):
        wait_until(lambda path=path: processes.webhook(jobs[path])["last_delivery_status"] == "ok")  # type: ignore[misc]
        for line in receiver.got(path):
            check_signature(line)

    # Permanent errors fail at once, transient ones after their retries.
    failed = {"/bad": (1, 400), "/moved": (1, 301), "/hang": (3, None), "nobody": (3, None)}
    wait_until(lambda: set(processes.dead_letters()) == {jobs[path] for path in failed}, 60)
    lines = {line["job_id"]: line for line in processes.lines()}
    for path, (attempts, status) in failed.items():
        line, dead_letter = lines[jobs[path]], processes.dead_letters()[jobs[path]]
        assert processes.webhook(jobs[path])["last_delivery_status"] == "failed"
        assert (line["attempts"], dead_letter["attempts"]) == (attempts, attempts)
        assert [each["status"] for each in line["attempts_detail"]] == [status] * attempts
        assert line["attempts_detail"] == dead_letter["attempts_detail"]
        assert line["payload"] == dead_letter["payload"]
        assert json.loads(base64.b64decode(line["replay"]["body_base64"])) == line["payload"]
    assert lines[jobs["nobody"]]["attempts_detail"][0]["error"] == "Connection refused"
    assert receiver.got("/target") == []
    assert SECRET not in processes.file.read_text()

    # Redriven byte for byte, and only once.
    event_id = processes.dead_letters()[jobs["/bad"]]["event_id"]
    wanted = {"event_ids": [event_id]}
    assert processes.call("POST", "/webhooks/dlq/redrive", wanted)["redriven"] == [event_id]
    wait_until(lambda: processes.dead_letters()[jobs["/bad"]]["redrive"]["status"] == "ok")
    assert processes.call("POST", "/webhooks/dlq/redrive", wanted)["skipped"] == [event_id]
    before, after = receiver.got("/bad")
    assert before["body"] == after["body"]
    check_signature(after)
    outcome = processes.lines()[-1]
    assert (outcome["event_id"], outcome["ok"]) == (event_id, True)
    assert processes.webhook(jobs["/bad"])["last_delivery_status"] == "ok"


def test_a_crash_after_sending_loses_nothing(processes: WebhookProcesses) -> None:
    receiver = processes.receiver({})
    job_id = processes.job(receiver.url("/hook"))
    processes.call("POST", f"/jobs/{job_id}/cancel", {})
    doomed = processes.worker(**{CRASH_VARIABLE: CrashPoint.AFTER_DELIVERY.value})
    assert doomed.wait() == -9
    assert receiver.types("/hook") == ["job.created"]
    processes.worker()
    wait_until(lambda: len(receiver.got("/hook")) == 3, 60)
    assert receiver.types("/hook") == ["job.created", "job.created", "job.cancelled"]
    first, again, _ = receiver.bodies("/hook")
    assert first == again  # the receiver recognises it by its event_id
    wait_until(lambda: processes.webhook(job_id)["last_delivery_status"] == "ok")
    assert not processes.lines()


def test_an_unavailable_receiver_gets_its_webhooks_later(processes: WebhookProcesses) -> None:
    """Deliveries wait in Redis, not in a worker: the worker is restarted meanwhile."""
    url = unreachable_url()
    first = processes.worker(
        workflow_webhook_retry_backoff_seconds=3600, workflow_webhook_retry_cap_seconds=3600
    )
    job_id = processes.job(url)
    wait_until(lambda: processes.webhook(job_id)["last_delivery_status"] == "retrying")
    first.wait_for_line("attempt 1 of 3")
    first.kill()
    [(_, due_ms)] = processes.server.client.zrange("workflow:webhooks", 0, -1, withscores=True)
    assert due_ms > 1e12
    processes.server.client.zadd("workflow:webhooks", {job_id: 1})  # an hour later
    second = processes.worker(workflow_webhook_max_retries=1)
    second.wait_for_line("dead-lettered after 2 attempts")
    wait_until(lambda: processes.webhook(job_id)["last_delivery_status"] == "failed")
    [line] = processes.lines()
    assert [each["attempt"] for each in line["attempts_detail"]] == [1, 2]
    beats = "jobs:stream:worker:"

    def delivered() -> bool:
        names = processes.server.client.keys(f"{beats}*")
        found = [processes.server.client.get(name) or b"{}" for name in names]
        return any(json.loads(beat).get("webhooks", {}).get("failed") == 1 for beat in found)

    wait_until(delivered)
