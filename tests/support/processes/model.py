"""Model servers as processes, and the gateway and workers that use them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx

from tests.support.processes.base import Processes
from tests.support.processes.gateway import environment
from tests.support.processes.worker import ROOT, wait_until

#: With temperature 0 the small model does not stop by itself.
LONG_PROMPT = "Tell me a very long story about a river."
TIMEOUT_S = 120.0

Event = dict[str, Any]


class ScriptedModel:
    """`tests.support.model.server`; can be killed and restarted at the same address."""

    def __init__(self, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.model.server", "--port", str(port)],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Requests so far, and whether they have ended."""
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/seen", timeout=20).json()
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


class ModelProcesses(Processes):
    """A gateway and any number of workers with the real handlers."""

    WORKER: ClassVar[dict[str, object]] = {"lease_ms": 1500, "heartbeat_s": 0.2}

    def chat(self, max_tokens: int, text: str = LONG_PROMPT) -> str:
        payload = {"text": text, "max_tokens": max_tokens, "temperature": 0}
        return self.gateway.submit("chat", payload)

    def get(self, path: str) -> Any:
        return self.request("GET", path).json()

    def job(self, job_id: str) -> dict[str, Any]:
        body: dict[str, Any] = self.get(f"/v1/jobs/{job_id}")
        return body

    def ended(self, job_id: str) -> dict[str, Any]:
        wait_until(lambda: self.job(job_id)["status"] not in ("queued", "running"), TIMEOUT_S)
        return self.job(job_id)

    @contextlib.contextmanager
    def watching(self, job_id: str, after: str = "") -> Iterator[Iterator[Event]]:
        headers = {"Accept": "application/x-ndjson", **({"Last-Event-ID": after} if after else {})}
        path = f"/v1/jobs/{job_id}/events"
        with self.gateway.http.stream("GET", path, headers=headers, timeout=TIMEOUT_S) as answer:
            yield (event for line in answer.iter_lines() if (event := json.loads(line)).get("id"))

    def model_check(self) -> dict[str, Any]:
        [check] = self.get("/v1/status")["checks"]["model"]
        return dict(check)


def deltas(events: list[Event], attempt: int) -> list[str]:
    messages = [event["data"] for event in events if event["type"] == "message"]
    pieces = [data for data in messages if data["attempt"] == attempt]
    assert [data["n"] for data in pieces] == list(range(1, len(pieces) + 1))
    return [data["delta"] for data in pieces]


def until_delta(events: Iterator[Event], number: int) -> list[Event]:
    """Events up to the given delta of the answer."""
    seen: list[Event] = []
    for event in events:
        seen.append(event)
        if event["type"] == "message" and event["data"]["n"] >= number:
            return seen
    raise AssertionError(f"the job ended before: {seen}")
