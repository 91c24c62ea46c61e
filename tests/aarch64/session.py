"""A user's first session, inside the aarch64 Debian: `make run`, a job with curl, Ctrl-C; then the
same with the embedded model. Runs natively too: `python -m tests.aarch64.session`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import pick

PROJECT = Path(__file__).parents[2]
#: Emulated programs start slowly. These limits end a run that hangs; they measure nothing.
START_S = 180.0
JOB_S = 240.0
STOP_S = 120.0


@contextmanager
def running(command: list[str], ready: str, **variables: str) -> Iterator[None]:
    """A command within the block, from the line that contains `ready` to Ctrl-C."""
    env = {**os.environ, **variables}
    for name in ("REDIS_URL", "MODEL_URL", "MAKEFLAGS", "MAKELEVEL"):
        env.pop(name, None)
    process = subprocess.Popen(
        command, cwd=PROJECT, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    overdue = threading.Timer(START_S, os.killpg, (process.pid, signal.SIGKILL))
    overdue.start()
    try:
        for line in process.stdout:
            print(f"  {line.rstrip()}", flush=True)
            if ready in line:
                break
        else:
            raise AssertionError(f"{command} ended before the line {ready!r}")
        overdue.cancel()
        drain = threading.Thread(target=process.stdout.read)
        drain.start()
        yield
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        code = process.wait(STOP_S)
        drain.join()
        # make reports an interrupted command with exit code 2.
        assert code in (0, 2, -signal.SIGINT), f"{command}: exit code {code}"
    finally:
        overdue.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def curl(url: str, *options: str) -> str:
    command = ["curl", "-sS", "--fail-with-body", "-N", "--max-time", str(JOB_S), *options, url]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def run_job(gateway: str, job: dict[str, object]) -> list[tuple[str, str]]:
    """Submits a job and reads its events until the last one; returns their types and data."""
    body = ("-H", "Content-Type: application/json", "-d", json.dumps(job))
    job_id = json.loads(curl(f"{gateway}/v1/jobs", *body))["job_id"]
    stream = curl(f"{gateway}/v1/jobs/{job_id}/events")
    types = [line[7:] for line in stream.splitlines() if line.startswith("event: ")]
    data = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    stored = json.loads(curl(f"{gateway}/v1/jobs/{job_id}"))
    assert stored["status"] == "done", stored
    return list(zip(types, data))


def run_echo(port: str, variables: dict[str, str]) -> list[str]:
    """`make run` with the private Redis, and a job through the echo worker."""
    with running(["make", "run", "ARGS=--worker echo"], "API:", **variables):
        job: dict[str, object] = {"task": "chat", "payload": {"text": "hello"}}
        events = run_job(f"http://127.0.0.1:{port}", job)
    types = [type for type, _ in events]
    assert types == ["hello", "queued", "running", "message", "done"], events
    socket = Path(variables["SLUICE_DATA_DIR"]) / "redis" / "redis.sock"
    assert not socket.exists(), "Redis is still running"
    return types


def run_model(port: str, variables: dict[str, str]) -> list[str]:
    """A job that the embedded model answers."""
    sluice = str(Path(sys.executable).with_name("sluice"))
    serve = [sluice, "model", "serve", "--port", str(pick()), "--slots", "1", "--context", "256"]
    with (
        running(serve, "is served at", **variables),
        running([sluice, "up", "--worker", "real"], "API:", **variables),
    ):
        payload = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        job: dict[str, object] = {"task": "chat", "payload": payload, "timeout_s": 200}
        events = run_job(f"http://127.0.0.1:{port}", job)
    types = [type for type, _ in events]
    assert types[-1] == "done", events
    assert {"message", "usage"} <= set(types), events
    return types


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.aarch64.session")
    parser.add_argument("session", choices=("echo", "model"))
    session = {"echo": run_echo, "model": run_model}[parser.parse_args().session]
    port = str(pick())
    with tempfile.TemporaryDirectory(prefix="sluice-session-") as data:
        types = session(port, {"PORT": port, "SLUICE_DATA_DIR": data})
    print(f"events: {' '.join(types)}")


if __name__ == "__main__":
    main()
