"""`sluice bench`: a short test of a running gateway for lost jobs and latency."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.commands.arguments import (
    PERSISTENT_RETRIES,
    TASKS,
    UsageError,
    add_gateway_option,
    connect,
    positive_int,
    read_payload,
    seconds,
)
from sluice.errors import ExitCode, SluiceError
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.text import format_duration

if TYPE_CHECKING:
    from sluice import Sluice

JOBS, CONCURRENCY, TIMEOUT_S = 100, 8, 60.0
MAX_CONCURRENCY = 64
_PERCENTILES = (50, 95, 99)


@dataclass
class Measurements:
    """The measurements of a run. Threads append to it under a lock."""

    submit_ms: list[float] = field(default_factory=list)
    end_to_end_ms: list[float] = field(default_factory=list)
    status_counts: dict[str, int] = field(default_factory=dict)
    #: Ids of jobs that did not end within the timeout.
    lost: list[str] = field(default_factory=list)
    #: Ids of jobs with more than one terminal event.
    ended_twice: list[str] = field(default_factory=list)
    #: Errors of refused submissions.
    refused: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Submit jobs, follow each until it ends, and check that every job has exactly one end. "
        "Exit code 0: none was lost and none failed; 1: some were. This creates real load, also on "
        "the model server. `make bench` in the checkout measures more."
    )
    parser.epilog = """Examples:
  sluice bench
  sluice bench -n 500 -c 16 --save before.json
  sluice bench -n 500 -c 16 --against before.json"""
    add = parser.add_argument
    add(
        "-n",
        "--jobs",
        type=positive_int,
        default=JOBS,
        metavar="N",
        help=f"number of jobs (default: {JOBS})",
    )
    default = f"concurrent jobs (default: {CONCURRENCY})"
    add("-c", "--at-once", type=positive_int, default=CONCURRENCY, metavar="N", help=default)
    add("--task", choices=TASKS, default=TASKS[0])
    add("--payload", default="sluice bench", help="JSON or plain text, as for `sluice submit`")
    add(
        "--timeout",
        type=seconds,
        default=TIMEOUT_S,
        metavar="TIME",
        help="maximum time per job (default: 60s)",
    )
    add("--save", type=Path, metavar="FILE", help="save the report as JSON")
    add("--against", type=Path, metavar="FILE", help="compare with a saved report")
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console = Console.from_arguments(arguments)
    payload = read_payload(arguments.task, arguments.payload, None)
    before = _saved_report(arguments.against)
    sluice = connect(arguments, retries=PERSISTENT_RETRIES)
    sluice.request("GET", "/healthz")  # report an unreachable gateway once, not per job
    measured = Measurements()
    started = time.monotonic()
    _run_jobs(console, sluice, arguments, payload, measured)
    report = _report(measured, arguments.jobs, time.monotonic() - started)
    if arguments.save is not None:
        arguments.save.write_text(json.dumps(report, indent=2) + "\n")
    console.print_details(_details(report, before), report)
    return ExitCode.OK if report["ok"] else ExitCode.FAILED


def _run_jobs(
    console: Console,
    sluice: Sluice,
    arguments: argparse.Namespace,
    payload: Mapping[str, Any],
    measured: Measurements,
) -> None:
    lock, numbers = threading.Lock(), iter(range(arguments.jobs))
    ended = threading.Semaphore(0)

    def work() -> None:
        while True:
            with lock:
                if next(numbers, None) is None:
                    return
            try:
                _run_job(sluice, arguments, payload, measured, lock)
            finally:
                ended.release()

    for _ in range(min(arguments.at_once, arguments.jobs, MAX_CONCURRENCY)):
        threading.Thread(target=work, daemon=True).start()
    for number in range(arguments.jobs):
        ended.acquire()
        console.progress.show_bar("jobs", number + 1, arguments.jobs)
    console.progress.clear()


def _run_job(
    sluice: Sluice,
    arguments: argparse.Namespace,
    payload: Mapping[str, Any],
    measured: Measurements,
    lock: threading.Lock,
) -> None:
    submitted_at = time.monotonic()
    try:
        handle = sluice.submit(arguments.task, payload)
    except SluiceError as error:
        with lock:
            measured.refused.append(str(error))
        return
    accepted_at = time.monotonic()
    try:
        job = handle.wait(arguments.timeout)
        ended_at = time.monotonic()
        ends = sum(event.terminal for event in handle.stream())
    except SluiceError:
        with lock:
            measured.lost.append(handle.id)
        return
    with lock:
        measured.submit_ms.append((accepted_at - submitted_at) * 1000)
        measured.end_to_end_ms.append((ended_at - submitted_at) * 1000)
        measured.status_counts[job.status] = measured.status_counts.get(job.status, 0) + 1
        if ends != 1:
            (measured.ended_twice if ends else measured.lost).append(handle.id)


def _report(measured: Measurements, jobs: int, took_s: float) -> dict[str, Any]:
    has_faults = measured.lost or measured.ended_twice or measured.refused
    return {
        "ok": not has_faults and set(measured.status_counts) <= {"done"},
        "jobs": jobs,
        "took_s": round(took_s, 3),
        "jobs_per_s": round(len(measured.end_to_end_ms) / took_s, 1) if took_s > 0 else 0.0,
        "ends": dict(sorted(measured.status_counts.items())),
        "lost": measured.lost,
        "ended_twice": measured.ended_twice,
        "refused": measured.refused,
        "submit_ms": _percentiles(measured.submit_ms),
        "end_to_end_ms": _percentiles(measured.end_to_end_ms),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    found: dict[str, float | None] = {}
    for percent in _PERCENTILES:
        index = min(len(ordered) - 1, -(-len(ordered) * percent // 100) - 1)
        found[f"p{percent}"] = round(ordered[index], 1) if ordered else None
    return found


def _details(report: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    ends = ", ".join(f"{number} {status}" for status, number in report["ends"].items())
    yield "jobs", f"{report['jobs']}: {ends or 'none ended'}"
    yield "lost", f"{len(report['lost'])}  {' '.join(report['lost'][:3])}".rstrip()
    yield "ended twice", len(report["ended_twice"])
    if report["refused"]:
        yield "refused", f"{len(report['refused'])}: {report['refused'][0]}"
    yield "throughput", _with_change(report, before, "jobs_per_s", "{:.1f} jobs/s".format)
    for name, title in (("submit_ms", "submit"), ("end_to_end_ms", "end to end")):
        now, then = report[name], before.get(name) or {}
        parts = [f"{each} {_with_change(now, then, each, format_duration)}" for each in now]
        yield title, "  ".join(parts)


def _with_change(
    now: Mapping[str, Any],
    before: Mapping[str, Any],
    name: str,
    format_value: Callable[[float], str],
) -> str:
    value, old = now.get(name), before.get(name)
    if value is None:
        return "-"
    if not isinstance(old, (int, float)) or not old:
        return format_value(value)
    return f"{format_value(value)} ({(value - old) / old:+.0%})"


def _saved_report(file: Path | None) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        report = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is not a saved bench report: {error}") from None
    return report if isinstance(report, dict) else {}
