"""`python -m bench`: runs all measurements side by side and prints ratios."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench import (
    bullmq,
    docs,
    drain,
    fanout,
    first_token,
    growth,
    images,
    machine,
    post,
    report,
    workflows,
)
from bench.jobs import VerificationError
from bench.results import Results
from bench.scale import FULL, QUICK, Scale
from bench.server import BenchRedis, private_redis

#: Sockets of the largest process: 2,000 clients, as many Redis connections, and a reserve.
OPEN_FILES = 10_000
MAX_CLIENTS = 4_000


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # run all cleanup
    scale = QUICK if options.quick else FULL
    open_files = machine.raise_open_files(OPEN_FILES)
    before = machine.sample_load()
    print(_describe("now", before), flush=True)
    observer = machine.Observer()
    try:
        with private_redis(MAX_CLIENTS) as redis:
            results = _measure(redis, scale, open_files, before)
    except KeyboardInterrupt:
        return 130
    except VerificationError as error:
        print(f"bench: verification failed: {error}", file=sys.stderr)
        return 1
    results = replace(results, load_during=observer.load())
    print(_describe("during the run", results.load_during), end="\n\n")
    for table in report.tables(results):
        print(report.as_text(table), end="\n\n")
    if options.json is not None:
        results.save(options.json)
    if options.write_docs:
        for path in docs.write(results):
            print(f"wrote {path.parent.name}/{path.name}")
    return 0


def _measure(redis: BenchRedis, scale: Scale, open_files: int, before: machine.Load) -> Results:
    started = time.monotonic()

    def progress(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", file=sys.stderr, flush=True)

    version = redis.info("server")["redis_version"]
    print(f"{scale.name} run; Redis {version} on loopback TCP, no persistence", flush=True)
    drains = drain.run(redis, scale, progress)
    memory = drain.run_memory(redis, scale, progress)
    posts = post.run(redis, scale, progress)
    fanouts = fanout.run(redis, scale, progress, open_files)
    curve = growth.run(redis, scale, progress)
    tokens = first_token.run(redis, scale, progress)
    steps = workflows.run(redis, scale, progress)
    pictures = images.run(redis, scale, progress)
    bull = bullmq.run(redis, scale, progress)
    return Results(
        scale.name, version, before, before, drains, memory, posts, fanouts, curve, tokens, steps,
        pictures, bull,
    )  # fmt: skip


def _describe(when: str, load: machine.Load) -> str:
    text = (
        f"machine {when}: {load.cpus} CPUs, load {load.load_1m:.2f}, other processes use "
        f"{load.busy_share:.0%} of all CPU time"
    )
    return text if load.quiet else f"{text}\nWARNING: the machine is busy; goals are not evaluated"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round as JSON")
    parser.add_argument(
        "--write-docs", action="store_true", help="write docs/benchmarks.md and .svg"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
