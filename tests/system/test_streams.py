"""A client that watches a job sees a restart of the gateway only as a reconnection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.system.machine import Machine
from tests.system.sluice import GATEWAY, URL, WORKER, curl, job, post, wait_until

#: Duration of the job: even on a slow machine the gateway is back before it ends.
SLOW_MS = 25_000


def event_types(stream: str) -> list[str]:
    lines = stream.splitlines()
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


def event_ids(stream: str) -> list[str]:
    """Ids of job events in a stream; other frames have none."""
    lines = stream.splitlines()
    return [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]


def iter_until(lines: Iterable[str], last: str) -> Iterator[str]:
    """Lines up to and including the first with this prefix."""
    for line in lines:
        yield line
        if line.startswith(last):
            return


def test_a_stream_resumes_after_a_restart(machine: Machine) -> None:
    machine.write(
        f"/etc/systemd/system/{WORKER}.d/slow.conf",
        f"[Service]\nEnvironment=ECHO_DELAY_MS={SLOW_MS}\n",
    )
    machine.run(f"systemctl daemon-reload && systemctl restart {WORKER}")
    job_id = post(machine)
    wait_until(machine, job_id, "running")
    watching = machine.start(f"curl -sS -N --max-time 60 {URL}/v1/jobs/{job_id}/events")
    assert watching.stdout is not None
    before = "".join(iter_until(watching.stdout, "event: running"))
    machine.run(f"systemctl restart {GATEWAY}")
    rest, complaints = watching.communicate(timeout=60)
    before += rest
    assert watching.returncode == 0, complaints  # a clean end, not a broken connection
    assert event_types(before)[:3] == ["hello", "queued", "running"]
    assert job(machine, job_id)["status"] == "running", "the job ended before it could be shown"
    again = f"-N -H 'Last-Event-ID: {event_ids(before)[-1]}' {URL}/v1/jobs/{job_id}/events"
    after = curl(machine, f"--max-time 90 {again}", timeout_s=100)
    assert event_types(after) == ["hello", "message", "done"]
    assert not set(event_ids(before)) & set(event_ids(after))
