"""`python -m chaos`: runs Sluice under faults drawn from a seed and reports violations."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from chaos import report
from chaos.plan import On, make_plan
from chaos.run import Result, Run, Size

FULL = Size(seconds=150.0, jobs=3000, settle_s=90.0)
QUICK = Size(seconds=25.0, jobs=400, settle_s=60.0)
_SEEDS = 1_000_000
#: Time limit for start, stop and checks on a busy machine; exceeding it is an error of the harness.
_OVERHEAD_S = 300.0


def main() -> int:
    options = _options()
    size = _size(options)
    seed = random.randrange(_SEEDS) if options.seed is None else options.seed
    replay = f"python -m chaos --seed {seed}{_size_options(options)}"
    on = On(options.on)
    plan = make_plan(seed, size.seconds, on)
    print(f"seed {seed}: {len(plan)} faults in {size.seconds:.0f} s, {size.jobs} jobs")
    print(f"{report.plan_text(plan)}\n", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="sluice-chaos-"))
    failed = True
    try:
        limit_s = size.seconds + size.settle_s + _OVERHEAD_S
        result = asyncio.run(_execute(Run(seed, size, plan, directory, on), limit_s))
        failed = bool(result.violations)
    except asyncio.CancelledError:
        failed = False
        print("interrupted", file=sys.stderr)
        return 130
    except (RuntimeError, asyncio.TimeoutError) as error:
        print(f"chaos: the harness failed: {error!r}; see {directory}", file=sys.stderr)
        return 2
    finally:
        if not failed:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{result.redis_version}, seed {seed}\n{report.as_text(result)}\n")
    if options.json is not None:
        report.save(result, options.json, seed, replay)
    if failed:
        print(report.violations_text(result, replay))
        return 1
    print("no violations")
    return 0


async def _execute(run: Run, limit_s: float) -> Result:
    task = asyncio.ensure_future(asyncio.wait_for(run.execute(), limit_s))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task


def _size(options: argparse.Namespace) -> Size:
    size = QUICK if options.quick else FULL
    seconds = size.seconds if options.minutes is None else options.minutes * 60
    share = seconds / size.seconds
    jobs = round(size.jobs * share) if options.jobs is None else options.jobs
    return Size(seconds, jobs, size.settle_s)


def _size_options(options: argparse.Namespace) -> str:
    """The options that reproduce this run."""
    text = "" if options.on == On.ONE.value else f" --on {options.on}"
    text += " --quick" if options.quick else ""
    text += "" if options.minutes is None else f" --minutes {options.minutes!r}"
    return text + ("" if options.jobs is None else f" --jobs {options.jobs}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay the faults and jobs of an earlier run")
    parser.add_argument(
        "--on", choices=[on.value for on in On], default=On.ONE.value,
        help="one Redis, a Sentinel set, or a Cluster of six nodes",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, help="duration of the fault phase")
    parser.add_argument("--jobs", type=int, help="number of jobs to post")
    parser.add_argument("--quick", action="store_true", help="a short run, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
