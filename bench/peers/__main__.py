"""`python -m bench.peers`: compares Sluice with other job queues on the same Redis."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench import machine
from bench.peers import docs, idle, releases, report
from bench.peers.field import BY_KEY, FIELD, NODE, System
from bench.peers.measure import Effort, Failed, Round, measure
from bench.peers.results import FieldResults
from bench.report import as_text
from bench.server import BenchRedis, private_redis
from tests.interop import install

MAX_CLIENTS = 2_000


@dataclass(frozen=True)
class Scale:
    """Size of a run."""

    name: str
    rounds: int
    #: For systems with a share of 1.
    jobs: int
    warmup: int
    latencies: int
    cap_s: float
    idle_s: float


FULL = Scale("full", rounds=7, jobs=20_000, warmup=200, latencies=100, cap_s=60.0, idle_s=35.0)
QUICK = Scale("quick", rounds=1, jobs=2_500, warmup=50, latencies=20, cap_s=30.0, idle_s=6.0)


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # run all cleanup
    scale = QUICK if options.quick else FULL
    if options.rounds:
        scale = replace(scale, rounds=options.rounds)
    machine.raise_open_files(MAX_CLIENTS + 100)
    before = machine.sample_load()
    print(_describe("now", before), flush=True)
    observer = machine.Observer()
    try:
        with private_redis(MAX_CLIENTS) as redis:
            results = _run(redis, scale, _chosen(options.only), before)
    except KeyboardInterrupt:
        return 130
    results = replace(results, load_during=observer.load())
    print(_describe("during the run", results.load_during), end="\n\n")
    for table in report.tables(results):
        print(as_text(table), end="\n\n")
    if results.failures:
        print(report.failures(results))
    if options.json is not None:
        results.save(options.json)
    if not (options.quick or options.dry or options.only):
        for path in docs.write(results):
            print(f"wrote {path.parent.name}/{path.name}")
    return 1 if results.failures else 0


def _run(
    redis: BenchRedis, scale: Scale, systems: Sequence[System], before: machine.Load
) -> FieldResults:
    started = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", file=sys.stderr, flush=True)

    version = redis.info("server")["redis_version"]
    print(f"{scale.name} run; Redis {version} on loopback TCP, no persistence", flush=True)
    rounds: dict[str, list[Round]] = {system.key: [] for system in systems}
    failures: dict[str, str] = {}
    if NODE in rounds:
        try:
            install.ensure()
        except install.NotInstalled as error:
            failures[NODE] = str(error)
    for number in range(scale.rounds):
        # The order changes in each round.
        offset = number % len(systems)
        for system in (*systems[offset:], *systems[:offset]):
            if system.key not in failures:
                _one(redis, system, scale, rounds, failures, lambda text, n=number + 1: progress(  # type: ignore[misc]
                    f"{n}/{scale.rounds} {text}"
                ))  # fmt: skip
    progress(f"idle workers, for {scale.idle_s:.0f} s")
    working = [system for system in systems if system.key not in failures]
    weights = idle.measure_idle(redis, working, scale.idle_s)
    return FieldResults(
        scale.name, version, before, before, rounds, failures, weights, releases.releases()
    )


def _one(
    redis: BenchRedis,
    system: System,
    scale: Scale,
    rounds: dict[str, list[Round]],
    failures: dict[str, str],
    progress: Callable[[str], None],
) -> None:
    jobs = max(int(scale.jobs * system.share), 50)
    effort = Effort(jobs, scale.warmup, scale.latencies, scale.cap_s)
    try:
        found = measure(redis, system, effort)
    except Failed as error:
        failures[system.key] = str(error)
        progress(f"{system.title} FAILED: {error}")
        return
    rounds[system.key].append(found)
    progress(
        f"{system.title}: {found.drain_per_s:,.0f} jobs/s ({found.worker_cpu_us:,.0f} us CPU, "
        f"Redis {found.redis_cpu_us:,.0f} us), p50 {median(found.latencies_ms):.2f} ms, enqueue "
        f"{found.enqueue_per_s:,.0f}/s, {found.redis_memory_bytes:,.0f} bytes"
    )


def _chosen(only: str) -> Sequence[System]:
    if not only:
        return FIELD
    try:
        return [BY_KEY[key] for key in only.split(",")]
    except KeyError as error:
        raise SystemExit(f"unknown system {error}; choose from {', '.join(BY_KEY)}") from None


def _describe(when: str, load: machine.Load) -> str:
    text = (
        f"machine {when}: {load.cpus} CPUs, load {load.load_1m:.2f}, other processes use "
        f"{load.busy_share:.0%} of all CPU time"
    )
    return text if load.quiet else f"{text}\nWARNING: the machine is busy; times are not evaluated"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run; writes no files")
    parser.add_argument("--dry", action="store_true", help="do not write the docs page")
    parser.add_argument(
        "--only", default="", metavar="A,B", help="only these systems; writes no docs page"
    )
    parser.add_argument("--rounds", type=int, default=0, help="number of rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
