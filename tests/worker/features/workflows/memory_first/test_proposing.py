"""Acronyms, entities and names; proposals and plans that are unique, consistent and stable."""

from __future__ import annotations

import contextlib
import cProfile
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.common.contracts.rag import MOST_ALIASES
from sluice.common.contracts.workflow.statuses import ItemStatus, ProposalKind
from sluice.common.features.rag.ontology import TermEntry, term_key
from sluice.common.features.workflows.effects import Effects, TermChange
from sluice.common.features.workflows.records import Item
from sluice.worker.features.workflows.memory_first.ontology_plan import (
    OntologyPlan,
    plan_ontology,
    without_effects,
)
from sluice.worker.features.workflows.memory_first.sources.packed import Source
from sluice.worker.features.workflows.memory_first.steps.extract import ExtractionResult
from sluice.worker.features.workflows.memory_first.steps.proposals import (
    KnownTerms,
    Proposal,
    folder_name,
    propose,
    propose_moves,
)
from sluice.worker.features.workflows.memory_first.terms.candidates import Candidate
from sluice.worker.features.workflows.memory_first.terms.similarity import compare_names
from sluice.worker.features.workflows.memory_first.terms.terms import Occurrence
from sluice.worker.features.workflows.memory_first.text.acronyms import find_acronym_pairs
from sluice.worker.features.workflows.memory_first.text.analysis import analyse
from sluice.worker.features.workflows.memory_first.text.extractive_summary import (
    join_sentences,
    summarize_all,
    summarize_overall,
    summarize_source,
)
from tests.support.worker.memory_first import NOTES, RUNBOOK, found_in, read

ALIAS, MERGE = ProposalKind.TERM_ALIAS, ProposalKind.TERM_MERGE
CASE, ADD, MOVE = ProposalKind.TERM_CASE, ProposalKind.TERM_ADD, ProposalKind.FILE_MOVE


def candidate(
    source: str, target: str, confidence: float = 0.9, kind: ProposalKind = MERGE
) -> Candidate:
    return Candidate(kind, source, target, confidence, "why", (Occurrence("s_001", 0),))


def proposals_for(
    *candidates: Candidate, known: KnownTerms | None = None
) -> list[tuple[str | None, str]]:
    found = propose(ExtractionResult(candidates=list(candidates)), known or KnownTerms(), 100, 0.0)
    return [(each.source, each.target) for each in found]


def proposed(*bodies: str, lang: str = "en") -> list[Proposal]:
    return propose(found_in(*bodies, lang=lang), KnownTerms(), 1000, 0.5)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdefg"), st.sampled_from("abcdefg"), st.floats(0.1, 1)),
        max_size=30,
    )
)
def test_proposals_are_always_consistent(edges: list[tuple[str, str, float]]) -> None:
    found = proposals_for(*(candidate(*edge) for edge in edges if edge[0] != edge[1]))
    sources = [source for source, _ in found]
    assert len(sources) == len(set(sources))
    assert not set(sources) & {target for _, target in found}


def test_known_terms_are_not_proposed() -> None:
    terms = TermEntry("dead letter queue", ("DLQ",)), TermEntry("tls"), TermEntry("ttl")
    known = KnownTerms(list(terms))
    assert proposals_for(candidate("dlq", "Dead Letter Queue"), known=known) == []
    assert proposals_for(candidate("tls", "ttl"), known=known) == []  # known as two different terms
    assert proposals_for(candidate("DLQs", "DLQ"), known=known) == [("DLQs", "DLQ")]


def test_proposals_of_a_text() -> None:
    found = proposed(RUNBOOK, NOTES)
    assert [each.confidence for each in found] == sorted(
        (each.confidence for each in found), reverse=True
    )
    assert len({(each.kind, each.source, each.target) for each in found}) == len(found)
    first = found[0].payload()
    assert list(first) == ["kind", "from", "to", "confidence", "rationale", "evidence"]
    assert (first["kind"], first["from"], first["to"]) == ("term_alias", "DLQ", "dead letter queue")
    for place in first["evidence"]:
        body = {"s_001": RUNBOOK, "s_002": NOTES}[place["source"]]
        assert body[place["offset"] :].casefold().startswith("dead letter queue")
    added = [term_key(each.target) for each in found if each.kind is ADD]
    assert "dead letter queue" not in added  # covered by the acronym
    gone = {term_key(each.source) for each in found if each.source and each.kind is not CASE}
    assert not set(added) & gone


def test_an_acronym_with_two_meanings_has_low_confidence() -> None:
    texts = [
        "The public relations (PR) team.",
        "Open a pull request (PR). A pull request (PR) helps.",
    ]
    [once] = [each for each in proposed(*texts) if each.kind is ALIAS]
    assert (once.target, once.confidence > 0.9) == ("pull request", False)
    [sure] = [each for each in proposed(texts[1]) if each.kind is ALIAS]
    assert sure.confidence > 0.9


def test_cases_of_names_and_not_of_sentences() -> None:
    body = (
        "We run Redis here. They like Redis too. You know Redis well. It is redis, of course. "
        "Then Redis waits. Workers wait. The workers wait, and other workers wait. NEVER stop it."
    )
    cases = [(each.source, each.target) for each in proposed(body) if each.kind is CASE]
    assert cases == [("redis", "Redis")]


def test_words_without_blanks_are_found() -> None:
    body = (
        "死信队列用于存放无法处理的消息。死信队列中的消息会保留十四天。运维人员每天检查死信队列。"
    )
    added = [each.target for each in proposed(body, lang="zh")]
    assert "死信队列" in added
    assert "信队" not in added


def source(number: int, path: str) -> Source:
    return Source(f"s_{number:03d}", path, 1, str(number), "en", 1, "text/plain", path)


def test_a_name_has_one_target_without_cycles() -> None:
    assert proposals_for(candidate("a", "b", 0.9), candidate("a", "c", 0.8)) == [("a", "b")]
    assert proposals_for(candidate("a", "b", 0.9), candidate("b", "a", 0.8)) == [("a", "b")]
    circle = [candidate("a", "b", 0.9), candidate("b", "c", 0.8), candidate("c", "a", 0.7)]
    assert proposals_for(*circle) == [("a", "c"), ("b", "c")]
    # Chains are resolved to the last name.
    alias = candidate("DLQ", "dead letter queue", 0.95, ALIAS)
    first, second = proposals_for(candidate("DLQs", "DLQ", 0.7), alias)
    assert (first, second) == (("DLQ", "dead letter queue"), ("DLQs", "dead letter queue"))
    # A case is not proposed for a name that is replaced.
    case = candidate("Dlq", "DLQ", 0.9, CASE)
    assert proposals_for(case, alias) == [("DLQ", "dead letter queue")]
    assert proposals_for(case) == [("Dlq", "DLQ")]


def test_files_with_a_common_topic_get_a_folder() -> None:
    files = [source(n, f"in/{n}.md") for n in range(1, 5)] + [source(5, "dead-letters/5.md")]
    files += [source(6, "")]
    letters, retries = "dead letters", "retries"
    topics = [[letters], [retries, letters], [retries], ["something else"], [letters]]
    about = {f"s_{number:03d}": each for number, each in enumerate(topics, 1)}
    found = propose_moves(files, ExtractionResult(about=about))
    moves = {each.source: each.target for each in found}
    targets = "dead-letters/1.md", "retries/2.md", "retries/3.md"
    assert moves == dict(zip(("in/1.md", "in/2.md", "in/3.md"), targets))
    assert {each.kind for each in found} == {MOVE}
    # A move never overwrites a file.
    files = [source(1, "a/x.md"), source(2, "b/x.md"), source(3, "c.md")]
    about = {"s_001": ["topic"], "s_002": ["topic"]}
    found = propose_moves(files, ExtractionResult(about=about))
    assert [each.target for each in found] == ["topic/x.md"]


@pytest.mark.parametrize("term", ["../../etc", "/", "..", ".", "a/b", "\0", "Ünïcode term"])
def test_a_folder_is_a_plain_name(term: str) -> None:
    assert not set(folder_name(term)) & set("/.\0 ")


def results() -> list[Any]:
    """Extraction, proposals and summaries of a few texts."""
    bodies = [RUNBOOK, NOTES, RUNBOOK + NOTES, NOTES * 3]
    found, every = found_in(*bodies), summarize_all(read(*bodies), 3)
    languages = {f"s_{number:03d}": "en" for number in range(1, 5)}
    whole = summarize_overall([more for _, more in every], languages, 3)
    return [
        found.view(),
        [each.payload() for each in propose(found, KnownTerms(), 500, 0.1)],
        [join_sentences(best) for best, _ in every],
        join_sentences(whole),
    ]


def test_proposals_are_the_same_in_every_process() -> None:
    program = f"import json; from {__name__} import results; print(json.dumps(results()))"
    environment = {**os.environ, "PYTHONHASHSEED": "4242"}
    command = [sys.executable, "-c", program]
    said = subprocess.check_output(command, env=environment, timeout=120)
    assert json.loads(said) == json.loads(json.dumps(results()))
    assert len(results()[1]) > 10


def test_the_extraction_survives_serialisation() -> None:
    found = found_in(RUNBOOK, NOTES)
    again = ExtractionResult.of(json.loads(json.dumps(found.view())))
    assert again == found


def item(number: int, kind: str, source: str | None, to: Any) -> Item:
    payload = json.dumps({"kind": kind, "from": source, "to": to}).encode()
    name = f"p_{number:03d}"
    return Item(name, number, "proposals", "proposal", ItemStatus.APPROVED, payload, 2, False, 0.9)


def planned(stored: dict[str, bytes], *proposals: tuple[str, str | None, Any]) -> OntologyPlan:
    items = [item(number, *each) for number, each in enumerate(proposals, 1)]
    return plan_ontology(stored, Effects(), items, "wf_20260214_001", 17)


def names(found: OntologyPlan) -> dict[str, Any]:
    """Changed fields, with their resulting names."""
    read = {change.field: TermEntry.from_json(change.after or b"") for change in found.changes}
    return {field: entry and entry.names for field, entry in read.items()}


def stored(*entries: TermEntry) -> dict[str, bytes]:
    return {entry.term.casefold(): entry.to_json() for entry in entries}


def test_each_kind() -> None:
    for proposals, found in (
        ([("term_alias", "DLQ", "dead letter queue")], {"dead letter queue": "DLQ"}),
        ([("term_merge", "colour", "color")], {"color": "colour"}),
        ([("term_alias", "a", "b"), ("term_alias", "b", "a")], {"a": "b"}),  # they contradict
    ):
        wanted = {term: (term, alias) for term, alias in found.items()}
        assert names(planned({}, *proposals)) == wanted
    assert names(planned({}, ("term_case", "redis", "Redis"))) == {"redis": ("Redis",)}
    assert names(planned({}, ("term_add", None, " back  log "))) == {"back log": ("back log",)}
    there = stored(TermEntry("redis", ("rds",)))
    assert names(planned(there, ("term_case", "redis", "Redis"))) == {"redis": ("Redis", "rds")}
    # A name is not its own alias.
    own = planned({}, ("term_merge", "REDIS", "redis"), ("term_merge", "Redis", "redis"))
    assert names(own) == {"redis": ("redis",)}
    # An invalid entry is replaced.
    assert names(planned({"x": b"{"}, ("term_add", None, "X"))) == {"x": ("X",)}


def test_known_terms_change_nothing() -> None:
    there = stored(TermEntry("Redis", ("rds",)))
    alias, case = ("term_alias", "RDS", "redis"), ("term_case", "x", "Redis")
    found = planned(there, ("term_add", None, "redis"), alias, case)
    assert found.changes == []
    assert [status for _, status, _ in found.changed()] == ["applied"] * 3


def test_a_term_that_becomes_an_alias_keeps_its_aliases() -> None:
    there = stored(TermEntry("DLQ", ("morgue",)), TermEntry("dead letter queue", ("dlqueue",)))
    found = planned(there, ("term_alias", "DLQ", "dead letter queue"))
    assert names(found) == {
        "dlq": None,
        "dead letter queue": ("dead letter queue", "dlqueue", "DLQ", "morgue"),
    }
    assert [change.after for change in found.changes if change.field == "dlq"] == [b""]
    assert (found.terms_before, found.terms_after) == (2, 1)


def test_the_number_of_aliases_is_limited() -> None:
    full = stored(TermEntry("x", tuple(f"x{number}" for number in range(MOST_ALIASES))))
    found = planned(full, ("term_alias", "one more", "x"), ("term_alias", "x3", "x"))
    assert found.changes == []
    assert [failure.name for failure in found.failures] == ["p_001"]


def test_an_earlier_attempt_is_continued() -> None:
    first = planned({}, ("term_add", None, "a"), ("term_add", None, "b"))
    half = first.changes[0]
    made = Effects({half.field: (half.before, half.after)})
    items = [item(number, "term_add", None, name) for number, name in enumerate("ab", 1)]
    again = plan_ontology({half.field: half.after}, made, items, "wf_20260214_001", 17)
    assert again.changes == [first.changes[1]]
    assert (again.terms_before, again.terms_after) == (0, 2)


def test_changes_no_longer_approved_are_reverted() -> None:
    made = Effects({"a": (b"old", b"new")})
    found = plan_ontology({"a": b"new"}, made, [], "wf_20260214_001", 17)
    assert found.changes == [TermChange("a", b"new", b"old")]
    assert without_effects({"a": b"another's"}, made) == {"a": b"another's"}


def test_odd_names_are_refused() -> None:
    for to in (None, 7, "", " \n ", "x" * 201, ["x"], {"a": 1}):
        assert planned({}, ("term_add", None, to)).failures
    assert not planned({}, ("term_add", None, "x" * 200)).failures


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
