"""Results as tables for the terminal and for Markdown pages."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench.fanout import Fanout
from bench.results import Results, middle

Table = list[tuple[str, ...]]


def drain_table(results: Results) -> Table:
    """Worker drain, one row per program."""
    naive = results.drains["naive"]
    base = middle(naive, lambda row: row.jobs_per_s)
    base_cpu = middle(naive, lambda row: row.worker_cpu_us)
    rows: Table = [
        ("worker drain", "jobs/s", "x naive", "CPU µs/job", "x naive", "Redis CPU µs/job",
         "commands/job", "round trips/job"),
    ]  # fmt: skip
    names = {"ours": "Sluice worker", "naive": "naive worker", "floor": "Redis floor"}
    for key, drains in results.drains.items():
        per_s = middle(drains, lambda row: row.jobs_per_s)
        cpu = middle(drains, lambda row: row.worker_cpu_us)
        rows.append(
            (
                names[key], f"{per_s:,.0f}", f"{per_s / base:.1f}", f"{cpu:.0f}",
                f"{cpu / base_cpu:.2f}", f"{middle(drains, lambda row: row.redis_cpu_us):.0f}",
                f"{middle(drains, lambda row: row.commands_per_job):.1f}",
                f"{middle(drains, lambda row: row.round_trips_per_job):.2f}",
            )
        )  # fmt: skip
    return rows


def memory_table(results: Results) -> Table:
    rows: Table = [("bytes per finished job", "Sluice's Redis settings", "Redis defaults")]
    for name, memory in results.memory.items():
        rows.append((name, f"{memory.shipped_bytes:,.0f}", f"{memory.default_bytes:,.0f}"))
    return rows


def post_table(results: Results) -> Table:
    """POST, one row per server."""
    rows: Table = [("POST, 64 connections", "requests/s", "server CPU µs/request")]
    for key, name in (("ours", "Sluice POST /v1/jobs"), ("empty", "empty FastAPI route")):
        posts = results.posts[key]
        per_s = middle(posts, lambda row: row.requests_per_s)
        rows.append((name, f"{per_s:,.0f}", f"{middle(posts, lambda row: row.server_cpu_us):.0f}"))
    rows.append(("Sluice / empty, median of rounds", f"{results.post_ratio:.2f}", ""))
    return rows


def fanout_table(results: Results) -> Table:
    """SSE fan-out, one row per server and number of clients, then the ratios."""
    rows: Table = [
        ("SSE fan-out", "clients", "p50 ms", "p99 ms", "burst events/s", "Redis connections",
         "RSS MB", "Redis µs/event", "server µs/event"),
    ]  # fmt: skip
    for ours, naive in results.fanout_pairs:
        rows += [("Sluice", *_fanout(ours)), ("XREAD per client", *_fanout(naive))]
        pairs = [
            (ours.p50_ms, naive.p50_ms), (ours.p99_ms, naive.p99_ms),
            (ours.burst_events_per_s, naive.burst_events_per_s),
            (ours.redis_connections, naive.redis_connections),
            (ours.resident_mb, naive.resident_mb),
            (ours.redis_cpu_us_per_event, naive.redis_cpu_us_per_event),
            (ours.server_cpu_us_per_event, naive.server_cpu_us_per_event),
        ]  # fmt: skip
        ratios = (f"{left / right:.2g}" if right else "-" for left, right in pairs)
        rows.append(("Sluice / naive", f"{ours.clients:,}", *ratios))
    return rows


def growth_table(results: Results) -> Table:
    """One row per backlog."""
    rows: Table = [
        ("jobs waiting", "worker CPU µs/job", "Redis CPU µs/job", "enqueue µs", "refuse µs")
    ]
    for cost in results.growth_medians:
        numbers = (cost.worker_cpu_us, cost.redis_cpu_us, cost.enqueue_us, cost.refuse_us)
        rows.append((f"{cost.backlog:,}", *(f"{number:.0f}" for number in numbers)))
    return rows


def first_token_table(results: Results) -> Table:
    """Token latencies, one row per path."""
    rows: Table = [
        ("token latency, ms", "first, p50", "first, p95", "all, p50", "all, p95"),
    ]
    names = {"ours": "through Sluice", "direct": "directly from the model server"}
    for key, found in results.first_token.items():
        numbers = (found.first_p50_ms, found.first_p95_ms, found.all_p50_ms, found.all_p95_ms)
        rows.append((names[key], *(f"{number:.1f}" for number in numbers)))
    return rows


def workflow_table(results: Results) -> Table:
    found = results.workflows
    return [
        ("workflows, ms", "p50", "p95"),
        ("from a step to the next one", f"{found.transition_p50_ms:.1f}",
         f"{found.transition_p95_ms:.1f}"),
        ("a plain job, accepted to done", f"{found.plain_job_p50_ms:.1f}",
         f"{found.plain_job_p95_ms:.1f}"),
        ("from a decision to the next step", f"{found.decision_p50_ms:.1f}",
         f"{found.decision_p95_ms:.1f}"),
    ]  # fmt: skip


def image_table(results: Results) -> Table:
    found = results.images
    return [
        ("images", "measured"),
        ("per second, upload to result", f"{median(found.ours_per_s):.2f}"),
        ("per second, raw Pillow", f"{median(found.raw_per_s):.2f}"),
        ("Sluice / raw Pillow, median of rounds", f"{found.ratio:.2f}"),
        ("/healthz meanwhile, p50 ms", f"{found.healthz_p50_ms:.1f}"),
        ("/healthz meanwhile, p99 ms", f"{found.healthz_p99_ms:.1f}"),
        (f"worker MB after {round(found.memory_images / 3)}", f"{found.settled_mb:.0f}"),
        (f"worker MB after {found.memory_images}", f"{found.last_mb:.0f}"),
    ]


def bullmq_table(results: Results) -> Table:
    """Drains of a BullMQ queue, one row per worker."""
    found = results.bullmq
    if found is None:
        return [("BullMQ", "skipped: Node is not installed")]
    rows: Table = [
        ("BullMQ drain, 20 concurrent", "jobs/s", "CPU µs/job", "Redis CPU µs/job", "RSS MB")
    ]
    for name, drains in (("Sluice worker", found.ours), ("Node's own Worker", found.node)):
        numbers = (
            middle(drains, lambda row: row.jobs_per_s),
            middle(drains, lambda row: row.worker_cpu_us),
            middle(drains, lambda row: row.redis_cpu_us),
            middle(drains, lambda row: row.resident_mb),
        )
        rows.append((name, *(f"{number:,.0f}" for number in numbers)))
    ratios = (f"{found.ratio:.2f}", "", "", f"{found.memory_ratio:.2f}")
    rows.append(("Sluice / Node, median of rounds", *ratios))
    return rows


def goal_table(results: Results) -> Table:
    rows: Table = [("goal", "measured", "target", "result")]
    for goal in results.goals():
        rows.append((goal.name, f"{goal.found:.2f}", goal.wanted, goal.verdict.value))
    return rows


def tables(results: Results) -> list[Table]:
    return [
        drain_table(results), memory_table(results), post_table(results),
        fanout_table(results), growth_table(results), first_token_table(results),
        workflow_table(results), image_table(results), bullmq_table(results),
        goal_table(results),
    ]  # fmt: skip


def as_text(table: Table) -> str:
    """Aligned columns for a terminal."""
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = []
    for row in table:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths))
        lines.append("  ".join([row[0].ljust(len(first)), *others]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def as_markdown(table: Table) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|---" + "|---:" * (len(table[0]) - 1) + "|")
    return "\n".join(lines)


def _fanout(row: Fanout) -> Sequence[str]:
    return (
        f"{row.clients:,}", f"{row.p50_ms:.1f}", f"{row.p99_ms:.1f}",
        f"{row.burst_events_per_s:,.0f}", f"{row.redis_connections:,}", f"{row.resident_mb:.0f}",
        f"{row.redis_cpu_us_per_event:.0f}", f"{row.server_cpu_us_per_event:.0f}",
    )  # fmt: skip
