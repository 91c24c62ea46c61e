"""Node's BullMQ in a separate process, controlled by JSON lines."""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.interop import install
from tests.support.servers import missing

RELEASES = ("bullmq6", "bullmq5")
#: Long enough for a busy machine.
TIMEOUT_S = 60.0


def require_node() -> None:
    """Skips the test if Node or a release is missing (fails in CI)."""
    try:
        install.ensure()
    except install.NotInstalled as error:
        missing(str(error))


class NodeError(Exception):
    """An error thrown by Node."""


@dataclass(frozen=True)
class Event:
    """An event of QueueEvents; `ran` for a job that Node's worker has run."""

    event: str
    queue: str
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def job_id(self) -> str:
        return str(self.args.get("jobId", ""))


class Node:
    """One driver process."""

    def __init__(self, release: str, redis_url: str, prefix: str = "bull") -> None:
        require_node()
        connection = {"path": redis_url.removeprefix("unix://"), "maxRetriesPerRequest": None}
        self.release = release
        self.process = subprocess.Popen(
            ["node", "driver.mjs", release, json.dumps(connection), prefix],
            cwd=install.NODE_DIR,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._events: list[Event] = []
        self._news = threading.Condition()
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._ready.wait(TIMEOUT_S), "Node does not start"

    # -- requests ------------------------------------------------------------------------------

    def ask(self, op: str, **rest: Any) -> Any:
        return self.begin(op, **rest)()

    def begin(self, op: str, **rest: Any) -> Callable[[], Any]:
        """Sends a request; returns a function that waits for the response."""
        number = next(self._numbers)
        answered = self._answers[number] = queue.Queue()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"n": number, "op": op, **rest}) + "\n")
        self.process.stdin.flush()

        def answer() -> Any:
            try:
                reply = answered.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise AssertionError(f"Node does not answer {op} {rest}") from None
            if "error" in reply:
                raise NodeError(reply["error"])
            return reply["result"]

        return answer

    def queue(self, name: str, method: str, *args: Any) -> Any:
        return self.ask("queue", queue=name, method=method, args=args)

    def add(self, name: str, job: str, data: Any = None, **opts: Any) -> str:
        return str(self.queue(name, "add", job, {} if data is None else data, opts)["id"])

    def job(self, name: str, job_id: str, method: str = "", *args: Any) -> Any:
        return self.ask("job", queue=name, id=job_id, method=method, args=args)

    def finished(self, name: str, job_id: str, ttl_ms: int = 30_000) -> Any:
        """Calls `job.waitUntilFinished`: returns the value, or raises NodeError with the failure
        reason.

        The result may be known before its event has arrived; waits for both.
        """
        try:
            value = self.ask("finished", queue=name, id=job_id, ttl=ttl_ms)
        except NodeError:
            self.until(name, "failed", job_id=job_id)
            raise
        self.until(name, "completed", job_id=job_id)
        return value

    # -- events --------------------------------------------------------------------------------

    def events(self, name: str, *kinds: str, job_id: str | None = None) -> list[Event]:
        with self._news:
            return [
                event
                for event in self._events
                if event.queue == name
                and (not kinds or event.event in kinds)
                and job_id in (None, event.job_id)
            ]

    def until(
        self, name: str, *kinds: str, job_id: str | None = None, count: int = 1
    ) -> list[Event]:
        deadline = time.monotonic() + TIMEOUT_S
        with self._news:
            while len(found := self.events(name, *kinds, job_id=job_id)) < count:
                left_s = deadline - time.monotonic()
                received = [(event.event, event.args) for event in self.events(name)]
                assert left_s > 0, f"{count} {kinds} did not come: {received[-20:]}"
                self._news.wait(min(left_s, 1.0))
        return found

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._take(json.loads(line))
        except ValueError:  # closed while reading
            return

    def _take(self, message: dict[str, Any]) -> None:
        if "n" in message:
            self._answers.pop(message["n"]).put(message)
        elif "event" in message:
            args = message["args"] if isinstance(message["args"], dict) else {}
            with self._news:
                self._events.append(Event(message["event"], message["queue"], args))
                self._news.notify_all()
        else:
            self._ready.set()
