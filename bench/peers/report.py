"""The field as tables, and as the section of the page."""

from __future__ import annotations

from bench.peers.field import BY_KEY, FIELD, SLUICE
from bench.peers.measure import Round
from bench.peers.results import OURS, FieldResults
from bench.report import Table, as_markdown

HEADING = "The field"
PICTURE = "benchmarks-peers.svg"


def goal_table(results: FieldResults) -> Table:
    """The verdicts."""
    rows: Table = [("goal", "found", "wanted", "verdict")]
    for goal in results.goals():
        found = f"{goal.found:,.0f}" if goal.found >= 100 else f"{goal.found:.2f}"
        rows.append((goal.name, found, goal.wanted, goal.verdict.value))
    return rows


def speed_table(results: FieldResults) -> Table:
    """Drain and enqueue, the fastest first."""
    rows: Table = [
        ("worker drain", "jobs/s", "from", "to", "Sluice / it", "worker CPU us/job",
         "Redis CPU us/job", "enqueue jobs/s"),
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
    """From handing in to knowing the result, the quickest first."""
    rows: Table = [("one job at a time, ms", "p50", "p95")]
    for key in sorted(results.finished, key=results.p50):
        rows.append((BY_KEY[key].title, f"{results.p50(key):.2f}", f"{results.p95(key):.2f}"))
    return rows


def footprint_table(results: FieldResults) -> Table:
    """Memory, commands, bytes."""
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
    """Who got how many jobs, of which release, and what to know about it."""
    rows: Table = [("system", "release", "jobs a round", "how")]
    for system in FIELD:
        found = results.rounds.get(system.key)
        if found:
            release = results.versions.get(system.key, "")
            rows.append((system.title, release, f"{found[0].jobs:,}", system.note))
    return rows


def tables(results: FieldResults) -> list[Table]:
    """Everything for a terminal."""
    return [
        speed_table(results), latency_table(results), footprint_table(results),
        goal_table(results),
    ]  # fmt: skip


def failures(results: FieldResults) -> str:
    """Who did not get through, and why; empty where all did."""
    return "\n".join(
        f"- **{BY_KEY[key].title} failed** and has no numbers here: {' '.join(why.split())}"
        for key, why in results.failures.items()
    )


def section(results: FieldResults) -> str:
    """The whole section of the page."""
    rounds = max((len(found) for found in results.rounds.values()), default=0)
    calm = "quiet" if results.quiet else "busy"
    busy = (
        ""
        if results.quiet
        else f"\n> **Not a verdict.** Other work took {results.load_during.busy_share:.0%} of the "
        "machine during this run.\n"
    )
    failed = failures(results)
    best = results.best_python()
    fastest = f" The best Python peer was {BY_KEY[best].title}." if best else ""
    return f"""## {HEADING}
{busy}
![Sluice among its peers](benchmarks-peers.svg)

Every job system that one would choose instead, on the same private Redis {results.redis_version},
with the same job: an echo of a 200-byte JSON payload, one worker process, 16 at once, the result
stored. {rounds} rounds in turn, medians; ratios are of the same round
({results.load_before.cpus} CPUs, {calm}; the newest release of each, with hiredis and uvloop where
it can use them). Each worker is warmed up, frozen, given a full queue and timed until nothing waits
or runs; then every result is compared with what was handed in.{fastest}

Repeat it with `make bench-peers`; with `ARGS="--quick"` it is a first look in about a minute, which
writes nothing.

{as_markdown(goal_table(results))}

{as_markdown(speed_table(results))}

*From* and *to* are the slowest and the fastest round. *Enqueue* is what one client process hands
in, with sixteen callers at once where the client knows asyncio, else with one.

{as_markdown(latency_table(results))}

One job at a time, from handing it in to having its result, by the system's own way of waiting.

{as_markdown(footprint_table(results))}

*Idle* is resident memory of a worker that has had nothing to do; several processes count what they
share once. Commands and bytes are those of handing in + those of the worker; commands inside
scripts count. The last column is what all keys take that are left in Redis, divided by the jobs.

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
