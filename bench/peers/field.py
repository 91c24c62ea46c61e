"""The compared systems: commands of worker and client, and how to detect an empty queue."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.jobs import KEYS
from bench.pipe import Pipe
from tests.interop import install

_ROOT = Path(__file__).resolve().parents[2]
_VENVS = _ROOT / ".peers-venv"
_SYSTEMS = "bench.peers.systems"
#: The Node release to compare with: the current one.
NODE_RELEASE = "bullmq6"
SLUICE, SLUICE_HTTP, NODE = "sluice", "sluice-http", "bullmq-node"

#: Returns True if nothing waits or runs; uses commands that are cheap for Redis.
Drained = Callable[[Pipe, int], bool]


@dataclass(frozen=True)
class System:
    """One compared system."""

    key: str
    title: str
    worker: tuple[str, ...]
    client: tuple[str, ...]
    #: Gets the number of keys that exist when the queue is empty, for systems that can only be
    #: counted.
    drained: Drained
    #: Share of the jobs that it runs; slow systems get fewer.
    share: float = 0.15
    env: Mapping[str, str] = field(default_factory=dict)
    python: bool = True
    gateway: bool = False
    note: str = ""


def _python(venv: str) -> str:
    return str(_VENVS / venv / "bin" / "python")


def _tool(name: str, venv: str = "field") -> tuple[str, ...]:
    return (_python(venv), "-m", name)


def _module(name: str, venv: str = "field") -> tuple[str, ...]:
    return (_python(venv), "-m", f"{_SYSTEMS}.{name}")


def _ours(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name)


def _node(role: str) -> tuple[str, ...]:
    script = Path(__file__).with_name("systems") / "bullmq_node.mjs"
    return ("node", str(script), role, str(install.NODE_DIR), NODE_RELEASE)


def _empty(*keys: str) -> Drained:
    """Empty when these keys do not exist: Redis removes empty keys."""

    def drained(pipe: Pipe, _: int) -> bool:
        return not pipe.one("EXISTS", *keys)

    return drained


def _counted(*keys: str) -> Drained:
    """Empty when these keys do not exist and each job has left one result key."""

    def drained(pipe: Pipe, expected_keys: int) -> bool:
        gone, there = pipe.ask([("EXISTS", *keys), ("DBSIZE",)])
        return not gone and bool(there >= expected_keys)

    return drained


def _stream(key: str, group: str) -> Drained:
    """Empty when the group has read and acknowledged all entries."""

    def drained(pipe: Pipe, _: int) -> bool:
        stream, groups = pipe.ask([("XINFO", "STREAM", key), ("XINFO", "GROUPS", key)])
        newest = dict(zip(stream[::2], stream[1::2]))[b"last-generated-id"]
        for found in groups:
            fields = dict(zip(found[::2], found[1::2]))
            if fields[b"name"] == group.encode():
                return bool(fields[b"pending"] == 0 and fields[b"last-delivered-id"] == newest)
        return False

    return drained


def _celery(pool: str) -> tuple[str, ...]:
    return (
        *_tool("celery"), "-A", f"{_SYSTEMS}.celery", "worker", "--pool", pool, "-c", "16",
        "--loglevel", "ERROR", "--without-gossip", "--without-mingle",
    )  # fmt: skip


_SLUICE_ENV = {
    "MAX_INFLIGHT": "16", "COUNT": "16", "LOG_LEVEL": "warning", "CONSUMER": "bench",
    "IMAGE_DETECTOR": "none",  # avoids loading an installed face model at start
    "WORKER_HANDLERS": f"{_SYSTEMS}.sluice_echo",
}  # fmt: skip
_BULL = ("bull:bench:wait", "bull:bench:active")
_CELERY_KEYS = ("celery", "unacked", "unacked_index")

FIELD: tuple[System, ...] = (
    System(
        SLUICE, "Sluice", _ours("sluice.worker"), _ours(f"{_SYSTEMS}.sluice"),
        _stream(KEYS.queue, "workers"), share=1.0, env=_SLUICE_ENV,
        note="`python -m worker` with all features; the client connects directly to Redis, as the "
        "others do",
    ),
    System(
        SLUICE_HTTP, "Sluice over HTTP", _ours("sluice.worker"), _ours(f"{_SYSTEMS}.sluice_http"),
        _stream(KEYS.queue, "workers"), share=0.08, env=_SLUICE_ENV, gateway=True,
        note="the same worker; the Python client, HTTP and the gateway in between, which no other "
        "system has",
    ),
    System(
        NODE, "BullMQ, Node", _node("worker"), _node("client"), _empty(*_BULL), share=1.0,
        python=False,
    ),
    System(
        "bullmq-python", "BullMQ, Python", (*_module("bullmq_python"), "worker"),
        (*_module("bullmq_python"), "client"), _empty(*_BULL),
    ),
    System(
        "saq", "saq", (*_tool("saq", "saq"), f"{_SYSTEMS}.saq.settings"), _module("saq", "saq"),
        _empty("saq:bench:incomplete", "saq:bench:active"),
        note="results are polled every ms instead of every 500 ms",
    ),
    System(
        "taskiq", "taskiq",
        (*_tool("taskiq"), "worker", f"{_SYSTEMS}.taskiq:broker", "--workers", "1",
         "--max-async-tasks", "16", "--log-level", "ERROR"),
        _module("taskiq"), _counted("taskiq"),
        note="list broker, its fastest, which loses the jobs of a crashed worker; results are "
        "polled every ms instead of every 200 ms",
    ),
    System(
        "arq", "arq", (*_tool("arq", "arq"), f"{_SYSTEMS}.arq.WorkerSettings"),
        _module("arq", "arq"), _empty("arq:queue"),
        note="polls its queue and its results every ms instead of every 500 ms, otherwise it "
        "would be much slower",
    ),
    System(
        "streaq", "streaq", (*_tool("streaq"), "run", f"{_SYSTEMS}.streaq:worker"),
        _module("streaq"), _stream("streaq:default:queues:normal", "workers"), share=0.06,
    ),
    System(
        "dramatiq", "dramatiq",
        (*_tool("dramatiq"), f"{_SYSTEMS}.dramatiq", "-p", "1", "-t", "16"), _module("dramatiq"),
        _empty("dramatiq:default", "dramatiq:default.msgs"), note="16 threads",
    ),
    System(
        "celery-prefork", "Celery, prefork", _celery("prefork"), _module("celery"),
        _counted(*_CELERY_KEYS), share=0.03, note="16 processes",
    ),
    System(
        "celery-threads", "Celery, threads", _celery("threads"), _module("celery"),
        _counted(*_CELERY_KEYS), share=0.03, note="16 threads",
    ),
    System(
        "rq", "rq",
        (*_tool("rq.cli"), "worker", "--worker-class", "rq.SimpleWorker", "--quiet", "bench"),
        _module("rq"), _empty("rq:queue:bench", "rq:wip:bench"), share=0.03,
        note="one job at a time: its worker has no concurrency; SimpleWorker, which does not fork",
    ),
)  # fmt: skip
BY_KEY = {system.key: system for system in FIELD}
