"""How fast Redis executes the worker commands of the contract: packed in advance, replies ignored.

No worker can be faster without writing less. `python -m bench.floor SOCKET COUNT TAG`
"""

from __future__ import annotations

import json
import sys
import time
from itertools import chain
from pathlib import Path

from bench.jobs import KEYS, PAYLOAD, TTL_S, event, make_batch
from bench.pipe import Pipe, Word, pack
from sluice.common.contracts.jobs import WORKER_GROUP, EventType, JobField, Status, Step, Task

COUNT = 16
_TEXT = f"echo(task={Task.CHAT.value}): {json.loads(PAYLOAD)}"
_MESSAGE = json.dumps({"text": _TEXT})
_RESULT = json.dumps({"text": _TEXT, "ms": 0})
_NOW = int(time.time() * 1000)


def commands(job_id: str, message_id: str) -> list[tuple[Word, ...]]:
    """Commands that the contract requires of a worker for one echo job."""
    job, events = KEYS.job(job_id), KEYS.events(job_id)
    status, updated = JobField.STATUS, JobField.UPDATED_TS
    return [
        ("HGET", job, JobField.TTL_S),
        ("HSET", job, status, Status.RUNNING.value, updated, _NOW),
        ("EXPIRE", job, TTL_S),
        ("XADD", events, "*", *event(EventType.RUNNING, Step.WORKER_START, "{}")),
        ("EXPIRE", events, TTL_S),
        ("XADD", events, "*", *event(EventType.MESSAGE, Step.WORKER_ECHO, _MESSAGE)),
        ("EXPIRE", events, TTL_S),
        (
            "HSET", job, status, Status.DONE.value, updated, _NOW,
            JobField.RESULT, _RESULT, JobField.ERROR, "",
        ),
        ("EXPIRE", job, TTL_S),
        ("XADD", events, "*", *event(EventType.DONE, Step.WORKER_DONE, '{"ms":0}')),
        ("EXPIRE", events, TTL_S),
        ("XACK", KEYS.queue, WORKER_GROUP, message_id),
    ]  # fmt: skip


def packed_work(count: int, tag: int) -> bytes:
    """All commands of a drain, with one read per 16 jobs."""
    batch = make_batch(count, tag)
    read = pack(
        [("XREADGROUP", "GROUP", WORKER_GROUP, "floor", "COUNT", COUNT, "STREAMS", KEYS.queue, ">")]
    )
    pairs = list(zip(batch.job_ids, batch.message_ids))
    parts = []
    for start in range(0, count, COUNT):
        share = pairs[start : start + COUNT]
        parts += [read, pack(chain.from_iterable(commands(*pair) for pair in share))]
    return b"".join(parts)


def main(socket_path: str, count: str, tag: str) -> None:
    """Drains once per line on stdin and prints the time it took."""
    packed = packed_work(int(count), int(tag))
    pipe = Pipe(Path(socket_path))
    print("{}", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        pipe.push(packed)
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
