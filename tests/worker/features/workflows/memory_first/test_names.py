"""Acronyms, entities, and comparison of names."""

from __future__ import annotations

import contextlib
import cProfile
import signal
from collections.abc import Iterator

import pytest

from tests.support.worker.memory_first import read
from worker.features.workflows.memory_first.terms.similarity import compare_names
from worker.features.workflows.memory_first.text.acronyms import find_acronym_pairs
from worker.features.workflows.memory_first.text.analysis import analyse
from worker.features.workflows.memory_first.text.extractive_summary import summarize_source

#: Length of a text, and CPU seconds: several times what linear matching takes, and less than
#: quadratic matching would take.
NEVER_ENDS = 240_000
NEVER_ENDS_CPU_S = 20.0


@contextlib.contextmanager
def no_end_after(cpu_s: float) -> Iterator[None]:
    """Fail instead of running for ever."""

    def fail(*_: object) -> None:
        raise AssertionError("it grows with the square of the text")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def explained(text: str) -> list[tuple[str, str]]:
    return [(pair.short, pair.long) for pair in find_acronym_pairs(text, 0, len(text))]


@pytest.mark.parametrize(
    ("text", "short", "long"),
    [
        ("goes to the Dead Letter Queue (DLQ) then", "DLQ", "Dead Letter Queue"),
        ("the DLQ (dead letter queue) is full", "DLQ", "dead letter queue"),
        ("Server-Sent Events (SSE)", "SSE", "Server-Sent Events"),
        ("its time to live (TTL) ends", "TTL", "time to live"),
        ("Hypertext Transfer Protocol (HTTP)", "HTTP", "Hypertext Transfer Protocol"),
        ("JavaScript Object Notation (JSON)", "JSON", "JavaScript Object Notation"),
        ("quality of service (QoS)", "QoS", "quality of service"),
        ("cross-site scripting (XSS)", "XSS", "cross-site scripting"),
        ("die Datenschutz-Grundverordnung (DSGVO)", "DSGVO", "Datenschutz-Grundverordnung"),
        ("a **large language model** (LLM)", "LLM", "large language model"),
    ],
)
def test_acronyms_are_explained(text: str, short: str, long: str) -> None:
    assert explained(text) == [(short, long)]


@pytest.mark.parametrize(
    "text",
    ["It fails (ERROR) then", "an unrelated thing (ABC)", "HTTP (see RFC 9110)", "the Queue (Q)",
     "in the morning (AM)", "read this. Dead (DLQ)", "a job (JSON) is", "(DLQ)", "DLQ ()"],
)  # fmt: skip
def test_brackets_that_explain_nothing(text: str) -> None:
    assert explained(text) == []


def test_entities_have_kinds_and_positions() -> None:
    text = (
        "We met Anna Schmidt of the Bank of England on 14 February 2026 and on 2026-02-30. Write "
        "to Ops@Example.com, or see https://example.com/a?b=1. It sets `MODEL_URL` and job_id in "
        "/etc/sluice/worker.env; the SSE stream, `jobs:stream`, ends on Feb. 3, 2026."
    )
    [source] = read(text)
    found = analyse(source)["entities"]
    assert {kind: list(names) for kind, names in found.items()} == {
        "acronym": ["SSE"],
        "name": ["Anna Schmidt"],
        "date": ["2026-02-03", "2026-02-14"],
        "email": ["ops@example.com"],
        "url": ["https://example.com/a?b=1"],
        "identifier": ["MODEL_URL", "job_id"],
        "code": ["/etc/sluice/worker.env", "jobs:stream"],
    }
    place = found["date"]["2026-02-14"][2][0]
    assert text[place:].startswith("14 February 2026")


@pytest.mark.parametrize(
    ("one", "other"),
    [("queue", "queues"), ("policy", "policies"), ("dead-letter queue", "dead letter queue"),
     ("backpressure", "back-pressure"), ("canceled", "cancelled"), ("colour", "color"),
     ("organisation", "organization"), ("centre", "center"), ("retry policy", "retry policies"),
     ("receive", "recieve"), ("deployment", "deploymnet"), ("idempotency key", "idempotence key")],
)  # fmt: skip
def test_names_that_are_the_same(one: str, other: str) -> None:
    assert compare_names(one, other, "en", (20, 1)) is not None
    assert compare_names(other, one, "en", (20, 1)) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [("secure", "insecure"), ("ordered", "unordered"), ("blocking", "non-blocking"),
     ("connected", "disconnected"), ("import", "export"), ("encode", "decode"),
     ("internal", "external"), ("upstream", "downstream"), ("maximum", "minimum"),
     ("increase", "decrease"), ("employer", "employee"), ("useful", "useless"),
     ("universe", "university"), ("sha256", "sha512"), ("version 1", "version 2"),
     ("redis 6.2", "redis 7.2"), ("contact", "contract"), ("form", "from"), ("closed", "close"),
     ("worker", "working"), ("with key", "without key"), ("typed handler", "untyped handler"),
     ("ttl", "tls")],
)  # fmt: skip
def test_names_that_are_different(one: str, other: str) -> None:
    assert compare_names(one, other, "en", (20, 1)) is None
    assert compare_names(other, one, "en", (20, 1)) is None
    # A frequent word is not a typo.
    assert compare_names("complement", "compliment", "en", (20, 1)) is not None
    assert compare_names("complement", "compliment", "en", (20, 10)) is None


def work_on(unit: str, size: int) -> None:
    [source] = read(unit * (size // len(unit)))
    analyse(source)
    summarize_source(source, 3)


def calls_of(unit: str, size: int) -> int:
    with cProfile.Profile() as profile:
        work_on(unit, size)
    return sum(entry.callcount for entry in profile.getstats())


UNITS = [
    *("a", "`", "`a", "a.", "a-", "a@", "/a", "-a", "1.", "|", "a_", "(", "(A", "(AB) ", "["),
    *("Aa ", "1 May ", "w ", "# ", "- x\n", "```\n", "**", "[](", "a\u0301", "\u200d", "שלום "),
    *("死信队列", "\n", " ", "http://", "A b c d e f. ", "\ud7ff", "x'"),
]


def test_twice_the_text_means_at_most_twice_the_calls() -> None:
    """The work within a call, such as a pattern, is not counted."""
    for unit in UNITS:
        work_on(unit, 2_000)  # warms up caches; some are used for long texts only
        assert calls_of(unit, 4_000) <= 2.1 * calls_of(unit, 2_000) + 500, unit


@pytest.mark.slow("a long text of each pattern")
@pytest.mark.parametrize("unit", UNITS)
def test_no_text_takes_long(unit: str) -> None:
    """The text is so long that quadratic matching would exceed the CPU limit."""
    work_on(unit, 4_000)
    assert calls_of(unit, 8_000) <= 2.1 * calls_of(unit, 4_000) + 500
    with no_end_after(NEVER_ENDS_CPU_S):
        work_on(unit, NEVER_ENDS)
