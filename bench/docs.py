"""Writes `docs/benchmarks.md` and its chart from the results of one run."""

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
> **Not evaluated.** Other processes used {share:.0%} of the machine during this run, so the
> throughput and latency ratios below are not reliable. Run it again on an idle machine.
"""
#: Sections written by other benchmarks, and by hand; kept unchanged.
OTHER_SECTIONS = ("The field", "Partitions", "A hundred nodes", "Why sections differ")
_DOCS = Path(__file__).resolve().parents[1] / "docs"


def write(results: Results) -> list[Path]:
    """Writes both files; returns their paths."""
    page, picture = _DOCS / "benchmarks.md", _DOCS / "benchmarks.svg"
    _DOCS.mkdir(exist_ok=True)
    picture.write_text(draw(results))
    page.write_text(_keep_other_sections(_page(results), page.read_text() if page.exists() else ""))
    return [page, picture]


def _keep_other_sections(page: str, old: str) -> str:
    for heading in OTHER_SECTIONS:
        if section := find(old, heading):
            page = put(page, heading, section)
    return page


def _page(results: Results) -> str:
    rounds = len(results.drains["ours"])
    state = "quiet" if results.quiet else "busy"
    warning = "" if results.quiet else _BUSY.format(share=results.load_during.busy_share)
    return f"""# Benchmarks
{warning}
![Ratios of one run](benchmarks.svg)

Every number was measured side by side with the one it is compared to: same machine, same private
Redis {results.redis_version} on loopback TCP without persistence, {rounds} alternating rounds,
medians. Compare the ratios; absolute numbers depend on the machine
({results.load_before.cpus} CPUs, {state}). CPU time per job varies least. Sections were
measured in separate runs with different handlers and settings, so compare numbers only within a
section: [why they differ](#why-sections-differ).

Repeat it with `make bench`, or `python -m bench --quick` for a short run of under a minute.
`python -m bench --write-docs` writes this page, `--json FILE` writes every round.

{as_markdown(goal_table(results))}

## Worker drain

Echo jobs with a 200-byte JSON payload, one worker process, 16 concurrent jobs. *Sluice worker* is
`python -m worker.echo_worker` with default settings, including leases, fencing, hints and trimming.
*Naive worker* is `bench/naive.py`: redis-py, one round trip per command, only the writes that the
contract requires. *Redis floor* is the worker commands of the contract, packed in advance and piped
into Redis: no worker that follows the contract can drain faster on this Redis. Each worker is
warmed up, frozen, given a full queue and timed until the last message is acknowledged. Then every
job is checked: done, nine fields, four events, nothing pending.

{as_markdown(drain_table(results))}

The Sluice worker reaches {results.floor_share:.0%} of the floor. Round trips are commands that the
worker sends; commands are all that Redis executes, including those inside scripts.

{as_markdown(memory_table(results))}

Most of a finished job is memory that Redis allocates for its small event stream. Sluice's Redis
setting `stream-node-max-bytes 1024` halves it, for any worker.

## POST /v1/jobs

`python -m gateway` against an empty FastAPI route that validates the same body with pydantic and
returns the same shape, both on uvicorn with uvloop and httptools, with 64 keep-alive connections.
Every accepted job is counted in Redis afterwards.

{as_markdown(post_table(results))}

## Live events

Each client watches its own running job. Latency is the time from emitting an event to the arrival
of its bytes at the client, at 1,000 events per second; then as many events as possible are sent at
once. Rounds per number of clients: {results.fanout_rounds}, medians. *XREAD per client* is
`bench/naive_sse.py`, a minimal app in which every client blocks in its own Redis connection.

{as_markdown(fanout_table(results))}

## Growth

Cost per job against the number of waiting jobs. It should be flat: no operation may depend on how
many jobs exist. *Refuse* is a job that is refused because the queue is full.

{as_markdown(growth_table(results))}

## Tokens

A model server that writes the current time into each token (`bench/token_server.py`), 25 per
second. Latency of a token from the server's socket to the client: through worker, Redis, gateway
and SSE, and for a client that calls the model server directly. Later tokens are batched for up to
40 ms.

{as_markdown(first_token_table(results))}

## Workflows

A workflow with no-op steps (`bench/workflow_steps.py`): time from the start of a step to the start
of the next one, including every write, script and queue message in between. *A plain job* runs one
cheap tool on the same worker, in alternation. A decision is sent over HTTP and measured until the
next step's `step.started`. Then {results.workflows.parallel} concurrent `memory_first_v2` jobs run
all seven steps, each with its own source: {results.workflows.parallel_per_s:.1f} per second end to
end. Every event of every job is checked: none is lost or duplicated.

{as_markdown(workflow_table(results))}

## Images

JPEG files of twelve megapixels, converted to WebP of 1,920 pixels width: uploaded over HTTP,
spooled, queued, processed in sandboxed processes, stored, recorded. *Raw Pillow* is
`bench/raw_images.py`: two processes and a loop over the same files, without limits, hashes,
placeholders or crash safety. Then `/healthz` is requested every ten milliseconds while more images
are processed, and the memory of the worker with all its processes is measured over
{results.images.memory_images} smaller ones.

{as_markdown(image_table(results))}

## BullMQ

No-op jobs in a BullMQ queue: `python -m worker.bullmq` with default settings, including lock
renewal, stall detection and the same executor as for other jobs, compared with Node's own `Worker`
of the current release. Each is warmed up, frozen, given a full queue and timed until the last job
has completed. Then every job is checked: completed in one attempt, nothing left.

{as_markdown(bullmq_table(results))}
"""
