"""`sluice bench`: a small check for loss and latency, against a gateway that runs."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import STUBBORN, add_gateway, connect
from client.commands.words import TASKS, Unusable, duration_s, natural, payload_of
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.text import duration

if TYPE_CHECKING:
    from client import Sluice

JOBS, AT_ONCE, TIMEOUT_S = 100, 8, 60.0
MOST_AT_ONCE = 64
_PERCENTILES = (50, 95, 99)


@dataclass
class Seen:
    """What was measured; threads add to it under a lock."""

    submitted: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    #: Jobs with no end in time, or with more than one; and what could not be submitted.
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Submits jobs, follows each to its end, and counts: every job must have exactly one end. "
        "Exit code 0: none was lost and none failed; 1: some were. It is real load: think before "
        "you aim it at a model. `make bench` of the checkout measures more."
    )
    add = parser.add_argument
    add("-n", "--jobs", type=natural, default=JOBS, metavar="N", help=f"({JOBS})")
    add("-c", "--at-once", type=natural, default=AT_ONCE, metavar="N", help=f"({AT_ONCE})")
    add("--task", choices=TASKS, default=TASKS[0])
    add("--payload", default="sluice bench", help="JSON, or words as for `sluice submit`")
    add("--timeout", type=duration_s, default=TIMEOUT_S, metavar="TIME", help="for a job (60s)")
    add("--save", type=Path, metavar="FILE", help="keep the numbers")
    add("--against", type=Path, metavar="FILE", help="compare with numbers that were kept")
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.of(arguments)
    payload = payload_of(arguments.task, arguments.payload, None)
    before = _kept(arguments.against)
    sluice = connect(arguments, retries=STUBBORN)
    sluice.request("GET", "/healthz")  # nobody there is told once, not a hundred times
    seen = Seen()
    began = time.monotonic()
    _load(console, sluice, arguments, payload, seen)
    report = _report(seen, arguments.jobs, time.monotonic() - began)
    if arguments.save is not None:
        arguments.save.write_text(json.dumps(report, indent=2) + "\n")
    console.facts(_facts(report, before), report)
    return Exit.OK if report["ok"] else Exit.FAILED


def _load(
    console: Console,
    sluice: Sluice,
    arguments: argparse.Namespace,
    payload: Mapping[str, Any],
    seen: Seen,
) -> None:
    lock, numbers = threading.Lock(), iter(range(arguments.jobs))
    ended = threading.Semaphore(0)

    def work() -> None:
        while True:
            with lock:
                if next(numbers, None) is None:
                    return
            try:
                _one(sluice, arguments, payload, seen, lock)
            finally:
                ended.release()

    crew = [
        threading.Thread(target=work, daemon=True)
        for _ in range(min(arguments.at_once, arguments.jobs, MOST_AT_ONCE))
    ]
    for member in crew:
        member.start()
    for number in range(arguments.jobs):
        ended.acquire()
        console.progress.bar("jobs", number + 1, arguments.jobs)
    console.progress.clear()


def _one(
    sluice: Sluice,
    arguments: argparse.Namespace,
    payload: Mapping[str, Any],
    seen: Seen,
    lock: threading.Lock,
) -> None:
    """One job from its submission to its end."""
    from client.errors import SluiceError, WaitTimeout

    began = time.monotonic()
    try:
        handle = sluice.submit(arguments.task, payload)
    except SluiceError as error:
        with lock:
            seen.refused.append(str(error))
        return
    accepted = time.monotonic()
    try:
        job = handle.wait(arguments.timeout)
        whole = time.monotonic() - began
        ends = sum(event.terminal for event in handle.stream())
    except (WaitTimeout, SluiceError):
        with lock:
            seen.lost.append(handle.id)
        return
    with lock:
        seen.submitted.append((accepted - began) * 1000)
        seen.whole.append(whole * 1000)
        seen.ends[job.status] = seen.ends.get(job.status, 0) + 1
        if ends != 1:
            (seen.twice if ends else seen.lost).append(handle.id)


def _report(seen: Seen, jobs: int, took_s: float) -> dict[str, Any]:
    ok = not seen.lost and not seen.twice and not seen.refused and set(seen.ends) <= {"done"}
    return {
        "ok": ok,
        "jobs": jobs,
        "took_s": round(took_s, 3),
        "jobs_per_s": round(len(seen.whole) / took_s, 1) if took_s > 0 else 0.0,
        "ends": dict(sorted(seen.ends.items())),
        "lost": seen.lost,
        "ended_twice": seen.twice,
        "refused": seen.refused,
        "submit_ms": _spread(seen.submitted),
        "end_to_end_ms": _spread(seen.whole),
    }


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    found: dict[str, float | None] = {}
    for percent in _PERCENTILES:
        place = min(len(ordered) - 1, -(-len(ordered) * percent // 100) - 1)
        found[f"p{percent}"] = round(ordered[place], 1) if ordered else None
    return found


def _facts(report: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    ends = ", ".join(f"{number} {status}" for status, number in report["ends"].items())
    yield "jobs", f"{report['jobs']}: {ends or 'none ended'}"
    yield "lost", f"{len(report['lost'])}  {' '.join(report['lost'][:3])}".rstrip()
    yield "ended twice", len(report["ended_twice"])
    if report["refused"]:
        yield "refused", f"{len(report['refused'])}: {report['refused'][0]}"
    yield "throughput", _compared(report, before, "jobs_per_s", lambda value: f"{value:.1f} jobs/s")
    for name, title in (("submit_ms", "submit"), ("end_to_end_ms", "end to end")):
        parts = [
            f"p{percent} {_compared(report[name], before.get(name) or {}, f'p{percent}', duration)}"
            for percent in _PERCENTILES
        ]
        yield title, "  ".join(parts)


def _compared(now: Mapping[str, Any], before: Mapping[str, Any], name: str, say: Any) -> str:
    value, old = now.get(name), before.get(name)
    if value is None:
        return "-"
    if not isinstance(old, (int, float)) or not old:
        return str(say(value))
    return f"{say(value)} ({(value - old) / old:+.0%})"


def _kept(file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        told = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise Unusable(f"{file} has no numbers of a bench: {error}") from None
    return told if isinstance(told, dict) else {}
