"""`docs/benchmarks.md` and its picture, from one run's results."""

from __future__ import annotations

from pathlib import Path

from bench.report import (
    as_markdown,
    bullmq_table,
    drain_table,
    fanout_table,
    first_token_table,
    goal_table,
    growth_table,
    image_table,
    memory_table,
    post_table,
    workflow_table,
)
from bench.results import Results
from bench.sections import find, put
from bench.svg import draw

_BUSY = """
> **Not a verdict.** Other work took {share:.0%} of the machine during this run, so the throughput
> and latency ratios below are not to be relied on. Run it again on a quiet machine.
"""
#: Sections that other runs write, and this one leaves as they are.
OTHERS = ("The field", "Partitions", "A hundred nodes")
_DOCS = Path(__file__).resolve().parents[1] / "docs"


def write(results: Results) -> list[Path]:
    """Write both files; returns their paths."""
    page, picture = _DOCS / "benchmarks.md", _DOCS / "benchmarks.svg"
    _DOCS.mkdir(exist_ok=True)
    picture.write_text(draw(results))
    page.write_text(_with_others(_page(results), page.read_text() if page.exists() else ""))
    return [page, picture]


def _with_others(page: str, old: str) -> str:
    for heading in OTHERS:
        if section := find(old, heading):
            page = put(page, heading, section)
    return page


def _page(results: Results) -> str:
    rounds = len(results.drains["ours"])
    calm = "quiet" if results.quiet else "busy"
    warning = "" if results.quiet else _BUSY.format(share=results.load_during.busy_share)
    return f"""# Benchmarks
{warning}
![Ratios of one run](benchmarks.svg)

Every number here was measured side by side with what it is compared to: the same machine, the
same private Redis {results.redis_version} on loopback TCP without persistence, contestants in
turn for {rounds} rounds, medians. Read the ratios; the absolute numbers belong to the machine
({results.load_before.cpus} CPUs, {calm}). CPU time per job is the steadier column.

Repeat it with `make bench`, or `python -m bench --quick` for a first look in under a minute.
`python -m bench --write-docs` writes this page, `--json FILE` keeps every round.

{as_markdown(goal_table(results))}

## Worker drain

Echo jobs with a 200-byte JSON payload, one worker process, 16 at once. *Sluice worker* is
`python -m worker.echo_worker` as shipped: leases, fencing, hints and trimming included. *Naive
worker* is `bench/naive.py`: redis-py, one round trip per command, the writes that the contract
asks for. *Redis floor* is the contract's literal worker commands, packed beforehand and piped into
Redis: no worker that writes what the contract says can drain faster on this Redis. Each worker is
warmed up, frozen, given a full queue and timed until the last message is acknowledged; then every
job is checked: done, nine fields, four events, nothing pending.

{as_markdown(drain_table(results))}

The Sluice worker reaches {results.floor_share:.0%} of the floor. A round trip is a command that
the worker sends; a command is anything Redis executes, inside scripts too.

{as_markdown(memory_table(results))}

Most of a finished job is room that Redis sets aside for its small event stream. Our settings of
Redis (`stream-node-max-bytes 1024`) halve that; they help every worker alike.

## POST /v1/jobs

`python -m gateway` against an empty FastAPI route that takes the same body through pydantic and
answers the same shape, both on uvicorn with uvloop and httptools, 64 keep-alive connections.
Every accepted job is counted in Redis afterwards.

{as_markdown(post_table(results))}

## Live events

Each client watches its own running job. Latency is from the moment an event is handed to the store
to the moment its bytes reach the client, at 1,000 events a second; then as many events as
possible at once. Rounds for each number of clients: {results.fanout_rounds}, medians. *XREAD a
client* is `bench/naive_sse.py`, a minimal app in which every client blocks in a Redis connection of
its own.

{as_markdown(fanout_table(results))}

## Growth

What a job costs while others wait. Flat is the goal: nothing may depend on how many jobs exist.
*Refuse* is a job turned away because the queue is full.

{as_markdown(growth_table(results))}

## Tokens

A model server that writes the time into each token (`bench/token_server.py`), 25 a second. How long
a token is under way from its socket to the client's: through worker, Redis, gateway and SSE, and
beside it for a client that asks the model server itself. Later tokens wait up to 40 ms for company.

{as_markdown(first_token_table(results))}

## Workflows

A workflow whose steps do nothing (`bench/workflow_steps.py`): from the start of a step to the start
of the next one, every write, script and queue message in between included. *A plain job* is the
same worker's way with a job of one cheap tool, in turn. A decision is sent by HTTP and counts until
the next step's `step.started`. Then {results.workflows.parallel} of `memory_first_v2` at once, all
seven steps, each with a source of its own: {results.workflows.parallel_per_s:.1f} a second end to
end, and of each job every event checked: none lost, none twice.

{as_markdown(workflow_table(results))}

## Images

JPEG files of twelve megapixels, made WebP of 1,920 pixels width: uploaded over HTTP, spooled,
queued, processed in confined processes, stored, recorded. *Raw Pillow* is `bench/raw_images.py`:
two processes and a loop over the same files, without limits, hashes, placeholders or anything that
could survive a crash. Then `/healthz` every ten milliseconds while more of them are processed, and
the memory of the worker with all its processes over {results.images.memory_images} smaller ones.

{as_markdown(image_table(results))}

## BullMQ

Jobs that do nothing, in a queue of BullMQ: `python -m worker.bullmq` as shipped, with leases
renewed, stalls looked for and every job through the same executor as all others, beside Node's own
`Worker` of the current release. Each is warmed up, frozen, given a full queue and timed until the
last job has completed; then every job is checked: completed, in one attempt, nothing left.

{as_markdown(bullmq_table(results))}
"""
