"""Gateway and workers for a served model, and a client."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.worker.processes import Process, wait_until

#: With temperature 0 the small model does not stop by itself.
LONG_PROMPT = "Tell me a very long story about a river."
LEASE_MS = 1500
TIMEOUT_S = 120.0

Event = dict[str, Any]


class Rig:
    """A Redis, a gateway and any number of workers."""

    def __init__(self, directory: Path, spawn: Callable[..., Process], data: Path) -> None:
        self._spawn = spawn
        self._data = data
        self.redis = RealServer(require_binary(BUNDLED))
        self._gateway = GatewayProcess(
            PYTHON_M, directory / "gateway.log", REDIS_URL=self.redis.url, PORT="0"
        )
        self.url = f"http://127.0.0.1:{self._gateway.wait_until_listening().port}"

    def worker(self, name: str, **settings: object) -> Process:
        """A worker with the real handlers; it finds the model by its announcement file."""
        return self._spawn(
            "worker",
            redis_url=self.redis.url,
            sluice_data_dir=self._data,
            consumer=name,
            lease_ms=LEASE_MS,
            block_ms=50,
            heartbeat_s=0.2,
            embedder="off",
            **settings,
        )

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def chat(self, max_tokens: int, text: str = LONG_PROMPT, **more: Any) -> str:
        payload = {"text": text, "max_tokens": max_tokens, "temperature": 0, **more}
        status, body = self.ask("/v1/jobs", {"task": "chat", "payload": payload})
        assert status == 202, body
        job_id: str = body["job_id"]
        return job_id

    def job(self, job_id: str) -> dict[str, Any]:
        body: dict[str, Any] = self.ask(f"/v1/jobs/{job_id}")[1]
        return body

    def ended(self, job_id: str) -> dict[str, Any]:
        """The job after it has ended."""
        wait_until(lambda: self.job(job_id)["status"] not in ("queued", "running"), TIMEOUT_S)
        return self.job(job_id)

    @contextlib.contextmanager
    def watching(self, job_id: str, after: str = "") -> Iterator[Iterator[Event]]:
        """Streams the job's events over one connection."""
        headers = {"Accept": "application/x-ndjson", **({"Last-Event-ID": after} if after else {})}
        request = urllib.request.Request(f"{self.url}/v1/jobs/{job_id}/events", headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            yield (event for line in answer if (event := json.loads(line)).get("id"))

    def model_check(self) -> dict[str, Any]:
        """The model check in /v1/status."""
        [check] = self.ask("/v1/status")[1]["checks"]["model"]
        return dict(check)

    def close(self) -> None:
        self._gateway.close()
        self.redis.close()


def deltas(events: list[Event], attempt: int) -> list[str]:
    """The deltas of an attempt's answer."""
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
