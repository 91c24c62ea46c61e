"""The Python client: submit a job, watch it, get its result. `python examples/client_sync.py`

Uses the gateway at SLUICE_URL, with the key in SLUICE_API_KEY if it is set.
"""

from __future__ import annotations

import sys

from sluice import JobFailed, Sluice, SluiceError


def main(text: str) -> int:
    """Runs one job and prints its events and result; returns the exit code."""
    with Sluice() as sluice:
        # Safe to retry, also by the client: each submission has an idempotency key.
        job = sluice.submit("chat", {"text": text}, ttl_s=600)
        print(f"job {job.id}")
        # Live events from the first one on; the stream resumes after a lost connection.
        for event in job.stream():
            print(f"{event.type}: {event.text}" if event.text else event.type)
        try:
            print(f"result: {job.result(timeout_s=60)}")
        except JobFailed as failed:
            print(f"the job failed with {failed.kind}", file=sys.stderr)
            return failed.exit_code
        newest = next(sluice.jobs(status="done"))
        print(f"the newest done job took {newest.updated_ts - newest.created_ts} ms")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(" ".join(sys.argv[1:]) or "never lose it"))
    except SluiceError as error:
        print(f"{error}", file=sys.stderr)
        sys.exit(error.exit_code)
