"""Runs inside the machine: posts jobs until stdin closes, then prints a report.

It uses only plain Python, like a customer. Each job has its own Idempotency-Key and each request
its own connection. A job that was not accepted is sent again with the same key. All errors are
reported, even if a repetition succeeded.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
import uuid

ACCEPTED = 202
#: How long a job is retried after the end of the load before it counts as not accepted.
RETRY_FOR_S = 60.0


class Report:
    """Responses that all customers got; shared by all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: dict[str, str] = {}
        self.troubles: list[str] = []

    def add_trouble(self, outcome: str, detail: str, took_s: float) -> None:
        with self.lock:
            self.troubles.append(f"{time.time():.3f} {outcome} after {took_s:.3f} s: {detail}")


def post(port: int, key: str, report: Report) -> str | None:
    body = json.dumps({"task": "chat", "payload": {"text": key}})
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/jobs", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        report.add_trouble(type(error).__name__, str(error), time.monotonic() - begun)
        return None
    finally:
        connection.close()
    if answer.status == ACCEPTED:
        return str(json.loads(text)["job_id"])
    report.add_trouble(str(answer.status), text, time.monotonic() - begun)
    return None


def customer(port: int, pause_s: float, report: Report, finished: threading.Event) -> None:
    """Posts one job after the other until the end; the last one is retried until it is accepted."""
    while not finished.is_set():
        key = str(uuid.uuid4())
        give_up_at: float | None = None
        while (job_id := post(port, key, report)) is None:
            if finished.is_set():
                give_up_at = give_up_at or time.monotonic() + RETRY_FOR_S
                if time.monotonic() > give_up_at:
                    return
            time.sleep(0.1)
        with report.lock:
            report.jobs[key] = job_id
        time.sleep(pause_s)


def main() -> None:
    """Runs until stdin closes; prints the report as one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--customers", type=int, default=4)
    parser.add_argument("--pause-s", type=float, default=0.02)
    options = parser.parse_args()
    report, finished = Report(), threading.Event()
    threads = [
        threading.Thread(target=customer, args=(options.port, options.pause_s, report, finished))
        for _ in range(options.customers)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    finished.set()
    for thread in threads:
        thread.join()
    json.dump({"jobs": report.jobs, "troubles": report.troubles}, sys.stdout)


if __name__ == "__main__":
    main()
