"""Tables of the comparison, and its section of the docs page."""

from __future__ import annotations

from bench.peers.field import BY_KEY, FIELD, SLUICE
from bench.peers.measure import Round
from bench.peers.results import OURS, FieldResults
from bench.report import Table, as_markdown

HEADING = "The field"
PICTURE = "benchmarks-peers.svg"


def goal_table(results: FieldResults) -> Table:
    rows: Table = [("goal", "measured", "target", "result")]
    for goal in results.goals():
        found = f"{goal.found:,.0f}" if goal.found >= 100 else f"{goal.found:.2f}"
        rows.append((goal.name, found, goal.wanted, goal.verdict.value))
    return rows


def speed_table(results: FieldResults) -> Table:
    """Drain and enqueue, fastest first."""
    rows: Table = [
        ("worker drain", "jobs/s", "from", "to", "Sluice / other", "worker CPU µs/job",
         "Redis CPU µs/job", "enqueue jobs/s"),
    ]  # fmt: skip
    for key in _fastest_first(results):
        drains = [row.drain_per_s for row in results.rounds[key]]
        ratio = (
            f"{results.drain_ratio(key):.1f}"
            if key not in OURS and SLUICE in results.finished
            else ""
        )
        rows.append(
            (
                BY_KEY[key].title, f"{_middle(results, key, 'drain_per_s'):,.0f}",
                f"{min(drains):,.0f}", f"{max(drains):,.0f}", ratio,
                f"{_middle(results, key, 'worker_cpu_us'):,.0f}",
                f"{_middle(results, key, 'redis_cpu_us'):,.0f}",
                f"{_middle(results, key, 'enqueue_per_s'):,.0f}",
            )
        )  # fmt: skip
    return rows


def latency_table(results: FieldResults) -> Table:
    """Time from submission to result, fastest first."""
    rows: Table = [("one job at a time, ms", "p50", "p95")]
    for key in sorted(results.finished, key=results.p50):
        rows.append((BY_KEY[key].title, f"{results.p50(key):.2f}", f"{results.p95(key):.2f}"))
    return rows


def footprint_table(results: FieldResults) -> Table:
    """Memory, commands and network bytes."""
    rows: Table = [
        ("footprint", "idle MB", "MB after a drain", "processes", "commands/job",
         "network bytes/job", "Redis bytes/finished job"),
    ]  # fmt: skip
    for key in results.finished:
        commands = (
            f"{_middle(results, key, 'enqueue_commands'):.1f} + "
            f"{_middle(results, key, 'work_commands'):.1f}"
        )
        network = (
            f"{_middle(results, key, 'enqueue_bytes'):,.0f} + "
            f"{_middle(results, key, 'work_bytes'):,.0f}"
        )
        idle = results.idle_mb.get(key)
        rows.append(
            (
                BY_KEY[key].title, "-" if idle is None else f"{idle:.0f}",
                f"{_middle(results, key, 'drained_mb'):.0f}",
                f"{_middle(results, key, 'processes'):.0f}", commands, network,
                f"{_middle(results, key, 'redis_memory_bytes'):,.0f}",
            )
        )  # fmt: skip
    return rows


def effort_table(results: FieldResults) -> Table:
    """Jobs, release and notes of each system."""
    rows: Table = [("system", "release", "jobs per round", "notes")]
    for system in FIELD:
        found = results.rounds.get(system.key)
        if found:
            release = results.versions.get(system.key, "")
            rows.append((system.title, release, f"{found[0].jobs:,}", system.note))
    return rows


def tables(results: FieldResults) -> list[Table]:
    return [
        speed_table(results), latency_table(results), footprint_table(results),
        goal_table(results),
    ]  # fmt: skip


def failures(results: FieldResults) -> str:
    """Systems that failed, and why; empty if none did."""
    return "\n".join(
        f"- **{BY_KEY[key].title} failed** and has no numbers here: {' '.join(why.split())}"
        for key, why in results.failures.items()
    )


def section(results: FieldResults) -> str:
    rounds = max((len(found) for found in results.rounds.values()), default=0)
    state = "quiet" if results.quiet else "busy"
    busy = (
        ""
        if results.quiet
        else f"\n> **Not evaluated.** Other work took {results.load_during.busy_share:.0%} of the "
        "machine during this run.\n"
    )
    failed = failures(results)
    best = results.best_python()
    fastest = f" The best Python peer was {BY_KEY[best].title}." if best else ""
    return f"""## {HEADING}
{busy}
![Sluice among its peers](benchmarks-peers.svg)

Common alternatives on the same private Redis {results.redis_version}, with the same job: an echo of
a 200-byte JSON payload, one worker process, 16 concurrent jobs, stored results. {rounds}
alternating rounds, medians; ratios compare the same round ({results.load_before.cpus} CPUs,
{state}; the newest release of each, with hiredis and uvloop if supported). Each worker is warmed
up, frozen, given a full queue and timed until no job waits or runs. Then every result is compared
with its payload.{fastest}

Repeat it with `make bench-peers`. `ARGS="--quick"` is a short run of about a minute that writes no
files.

{as_markdown(goal_table(results))}

{as_markdown(speed_table(results))}

*From* and *to* are the slowest and the fastest round. *Enqueue* is the rate of one client process,
with sixteen concurrent callers if the client supports asyncio, else with one.

{as_markdown(latency_table(results))}

One job at a time, from submission to result, with the system's own method of waiting.

{as_markdown(footprint_table(results))}

*Idle* is the resident memory of a worker that has run no jobs; memory shared by several processes
counts once. Commands and bytes are those of submission + those of the worker, including commands
inside scripts. The last column is the memory of all keys left in Redis, divided by the jobs.

{as_markdown(effort_table(results))}
{chr(10) + failed + chr(10) if failed else ""}"""


def _middle(results: FieldResults, key: str, column: str) -> float:
    def number(row: Round) -> float:
        found: float = getattr(row, column)
        return found

    return results.middle(key, number)


def _fastest_first(results: FieldResults) -> list[str]:
    return sorted(
        results.finished, key=lambda key: _middle(results, key, "drain_per_s"), reverse=True
    )
