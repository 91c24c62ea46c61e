"""Runs inside the machine: posts jobs until its standard input closes, then tells what happened.

Plain Python, nothing of ours: it is a customer. Each job has its own Idempotency-Key and each
request its own connection; a job that was not accepted is sent again under the same key. What went
wrong on the way is reported, never hidden by the repetition.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
import uuid
from collections import Counter

ACCEPTED = 202
#: How long a job is offered after the end of the load before it counts as never accepted.
PATIENCE_S = 60.0


class Tally:
    """What the customers saw; shared by all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: dict[str, str] = {}
        self.answers: Counter[str] = Counter()
        self.troubles: list[str] = []
        self.slowest_s = 0.0

    def seen(self, outcome: str, detail: str, took_s: float) -> None:
        """One request ended so."""
        with self.lock:
            self.answers[outcome] += 1
            self.slowest_s = max(self.slowest_s, took_s)
            if outcome != str(ACCEPTED):
                self.troubles.append(f"{time.time():.3f} {outcome} after {took_s:.3f} s: {detail}")


def post(port: int, key: str, tally: Tally) -> str | None:
    """One request over a connection of its own; the job's id if it was accepted."""
    body = json.dumps({"task": "chat", "payload": {"text": key}})
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/jobs", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        tally.seen(type(error).__name__, str(error), time.monotonic() - begun)
        return None
    finally:
        connection.close()
    tally.seen(str(answer.status), text, time.monotonic() - begun)
    return str(json.loads(text)["job_id"]) if answer.status == ACCEPTED else None


def customer(port: int, pause_s: float, tally: Tally, over: threading.Event) -> None:
    """Posts one job after the other until it is over; the last one is still seen through."""
    while not over.is_set():
        key = str(uuid.uuid4())
        give_up_at: float | None = None
        while (job_id := post(port, key, tally)) is None:
            if over.is_set():
                give_up_at = give_up_at or time.monotonic() + PATIENCE_S
                if time.monotonic() > give_up_at:
                    return
            time.sleep(0.1)
        with tally.lock:
            tally.jobs[key] = job_id
        time.sleep(pause_s)


def main() -> None:
    """Load until standard input closes; the report is one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--customers", type=int, default=4)
    parser.add_argument("--pause-s", type=float, default=0.02)
    options = parser.parse_args()
    tally, over = Tally(), threading.Event()
    threads = [
        threading.Thread(target=customer, args=(options.port, options.pause_s, tally, over))
        for _ in range(options.customers)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    report = {
        "jobs": tally.jobs,
        "answers": tally.answers,
        "troubles": tally.troubles,
        "slowest_s": tally.slowest_s,
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
