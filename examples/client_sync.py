"""The Python client: hand in a job, watch it, have its result. `python examples/client_sync.py`

Asks the gateway of SLUICE_URL, with the key of SLUICE_API_KEY if there is one.
"""

from __future__ import annotations

import sys

from sluice import JobFailed, Sluice, SluiceError


def main(text: str) -> int:
    """Say what becomes of one job; returns the exit code."""
    with Sluice() as sluice:
        # Safe to repeat, by the client too: each submission has a key of its own.
        job = sluice.submit("chat", {"text": text}, ttl_s=600)
        print(f"job {job.id}")
        # Live, from the first event on; lost connections are picked up where they broke.
        for event in job.stream():
            print(f"{event.type}: {event.text}" if event.text else event.type)
        try:
            print(f"result: {job.result(timeout_s=60)}")
        except JobFailed as failed:
            print(f"it failed with {failed.kind}", file=sys.stderr)
            return failed.exit_code
        newest = next(sluice.jobs(status="done"))
        print(f"the newest job that is done has taken {newest.updated_ts - newest.created_ts} ms")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(" ".join(sys.argv[1:]) or "never lose it"))
    except SluiceError as error:
        print(f"{error}", file=sys.stderr)
        sys.exit(error.exit_code)
