"""The step `proposals`: turns extracted terms into consistent proposals, most confident first."""

from __future__ import annotations

import math
import posixpath
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis

from sluice.common.contracts.rag import MOST_TERMS, RagKeys
from sluice.common.contracts.workflow.statuses import ItemStatus, ProposalField, ProposalKind
from sluice.common.features.rag.ontology import OntologyReader, TermEntry, normalize_name, term_key
from sluice.common.features.workflows.memory_first import LIMIT, MIN_CONFIDENCE, MOST_PATH_CHARS
from sluice.common.text import plural
from sluice.worker.features.workflows.memory_first.sources import packed
from sluice.worker.features.workflows.memory_first.sources.packed import Source
from sluice.worker.features.workflows.memory_first.steps.extract import (
    ExtractionResult,
    load_extraction,
)
from sluice.worker.features.workflows.memory_first.terms.candidates import Candidate
from sluice.worker.features.workflows.memory_first.terms.terms import KEYPHRASE, Occurrence, Term
from sluice.worker.features.workflows.memory_first.text import entities
from sluice.worker.features.workflows.output import StepItem, StepOutput
from sluice.worker.registry import Service, WorkerServices

if TYPE_CHECKING:
    from sluice.worker.features.workflows.context import StepContext

#: Kinds of terms that are proposed for the ontology.
_ADDED_KINDS: Final = frozenset((KEYPHRASE, entities.NAME, entities.ACRONYM))
#: Most proposals of new terms per job.
_MOST_ADDED: Final = 200
#: Confidence of a term with score 0, and what a score of 1 adds.
_LEAST_SURE, _MORE_SURE = 0.35, 0.55
#: Factor for single words, which say less than phrases, names and acronyms.
_SINGLE_WORD: Final = 0.9
_DIGITS: Final = 4


@dataclass(frozen=True)
class Proposal:
    """One item of the step."""

    kind: ProposalKind
    source: str | None
    target: str
    confidence: float
    rationale: str
    evidence: tuple[Occurrence, ...]

    @property
    def order(self) -> tuple[float, str, str, str]:
        """Sort key: descending confidence, then name."""
        name = self.source if self.source is not None else self.target
        return (-self.confidence, name.casefold(), name, self.kind.value)

    def payload(self) -> dict[str, Any]:
        return {
            ProposalField.KIND: self.kind.value,
            ProposalField.FROM: self.source,
            ProposalField.TO: self.target,
            ProposalField.CONFIDENCE: self.confidence,
            ProposalField.RATIONALE: self.rationale,
            ProposalField.EVIDENCE: [occurrence.view() for occurrence in self.evidence],
        }


class KnownTerms:
    """The terms already in the namespace's ontology."""

    def __init__(self, entries: Iterable[TermEntry] = ()) -> None:
        self._terms: dict[str, str] = {}
        for entry in entries:
            for name in entry.names:
                self._terms.setdefault(term_key(name), term_key(entry.term))
        #: Exact spellings of the names.
        self._written = frozenset(name for entry in entries for name in entry.names)

    def holds(self, name: str) -> bool:
        """True if it is a term or an alias."""
        return term_key(name) in self._terms

    def are_same(self, one: str, other: str) -> bool:
        """True if both names are known as the same term."""
        term = self._terms.get(term_key(one))
        return term is not None and term == self._terms.get(term_key(other))

    def are_distinct(self, one: str, other: str) -> bool:
        """True if both names are known as different terms."""
        return self.holds(one) and self.holds(other) and not self.are_same(one, other)

    def is_spelled(self, name: str) -> bool:
        """True if a name is known in exactly this spelling."""
        return name in self._written


def propose(
    findings: ExtractionResult,
    known: KnownTerms,
    limit: int,
    min_confidence: float,
    moves: Sequence[Proposal] = (),
) -> list[Proposal]:
    renames = _RenameGraph()
    candidates = [each for each in findings.candidates if _is_new(each, known)]
    for candidate in sorted(candidates, key=_by_confidence):
        if candidate.confidence >= min_confidence and _fits(candidate):
            renames.add(candidate)
    found = [
        *renames.proposals(),
        *_case_changes(candidates, renames),
        *_new_terms(findings, known, renames.covered, min_confidence),
        *moves,
    ]
    kept = [each for each in found if each.confidence >= min_confidence]
    return sorted(kept, key=lambda each: each.order)[:limit]


class _RenameGraph:
    """Renamings between names: one target per name, no cycles; chains are resolved to their last
    name.
    """

    def __init__(self) -> None:
        self._above: dict[str, str] = {}
        self._kept: list[Candidate] = []
        self._written: dict[str, str] = {}

    def add(self, candidate: Candidate) -> None:
        """Add a renaming, unless it conflicts with an earlier one."""
        if candidate.kind is ProposalKind.TERM_CASE:
            return
        source, target = term_key(candidate.source), term_key(candidate.target)
        if source == target or source in self._above or self._root(target) == source:
            return
        self._above[source] = target
        self._written.setdefault(target, candidate.target)
        self._kept.append(candidate)

    @property
    def covered(self) -> frozenset[str]:
        """Names that are renamed, and expansions of acronyms: no proposals to add them are made."""
        aliases = (each for each in self._kept if each.kind is ProposalKind.TERM_ALIAS)
        return frozenset(self._above) | {self._root(term_key(each.target)) for each in aliases}

    def is_renamed(self, name: str) -> bool:
        return term_key(name) in self._above

    def proposals(self) -> list[Proposal]:
        """The renamings, each with the last name of its chain."""
        found = []
        for each in self._kept:
            root = self._root(term_key(each.target))
            target = each.target if root == term_key(each.target) else self._written[root]
            found.append(
                Proposal(
                    each.kind, each.source, target, each.confidence, each.rationale, each.evidence
                )
            )
        return found

    def _root(self, name: str) -> str:
        while name in self._above:
            name = self._above[name]
        return name


def _by_confidence(candidate: Candidate) -> tuple[float, str, str, str]:
    name = candidate.source
    return (-candidate.confidence, name.casefold(), name, candidate.target)


def _is_new(candidate: Candidate, known: KnownTerms) -> bool:
    if candidate.kind is ProposalKind.TERM_CASE:
        return not known.is_spelled(candidate.source)
    one, other = candidate.source, candidate.target
    return not (known.are_same(one, other) or known.are_distinct(one, other))


def _fits(candidate: Candidate) -> bool:
    """True if both names are within the limits of a term."""
    return all(
        normalize_name(name) == name and name for name in (candidate.source, candidate.target)
    )


def _case_changes(candidates: Iterable[Candidate], renames: _RenameGraph) -> list[Proposal]:
    return [
        Proposal(
            each.kind, each.source, each.target, each.confidence, each.rationale, each.evidence
        )
        for each in candidates
        if each.kind is ProposalKind.TERM_CASE
        and _fits(each)
        and not renames.is_renamed(each.target)
    ]


def _new_terms(
    findings: ExtractionResult, known: KnownTerms, covered: Collection[str], min_confidence: float
) -> list[Proposal]:
    """Terms that are not known yet."""
    found: list[Proposal] = []
    for term in findings.terms:
        name = term_key(term.term)
        if term.kind not in _ADDED_KINDS or name in covered or known.holds(term.term):
            continue
        confidence = _confidence(term)
        if confidence < min_confidence or normalize_name(term.term) != term.term:
            continue
        times = "once" if term.freq == 1 else f"{term.freq} times"
        of = "the source" if findings.sources == 1 else f"{term.df} of {findings.sources} sources"
        rationale = f"occurs {times}, in {of}"
        found.append(
            Proposal(
                ProposalKind.TERM_ADD, None, term.term, confidence, rationale, tuple(term.evidence)
            )
        )
    return found[:_MOST_ADDED]


def _confidence(term: Term) -> float:
    sure = _LEAST_SURE + _MORE_SURE * math.sqrt(term.score)
    single = term.kind == KEYPHRASE and " " not in term.term and term.term.isascii()
    return round(sure * (_SINGLE_WORD if single else 1.0), _DIGITS)


#: A folder is proposed for at least this many files, and at most this fraction of them.
_FEWEST: Final = 2
_MOST_SHARE: Final = 0.7
#: Confidence for the first topic of a source, and the decrease for each further one.
_SURE, _LESS = 0.8, 0.08
_NO_NAME: Final = re.compile(r"[^\w-]+")
_FOLDER_CHARS: Final = 60


def propose_moves(sources: Sequence[Source], findings: ExtractionResult) -> list[Proposal]:
    """For each file: a folder named after the best topic it shares with others."""
    files = [source for source in sources if source.path]
    holders: dict[str, int] = {}
    for source in files:
        for term in findings.about.get(source.id, ()):
            holders[term] = holders.get(term, 0) + 1
    taken = {source.path for source in sources if source.path}
    found: list[Proposal] = []
    for source in files:
        proposal = _propose_move(
            source, findings.about.get(source.id, ()), holders, len(files), taken
        )
        if proposal is not None:
            taken.add(proposal.target)
            found.append(proposal)
    return found


def _propose_move(
    source: Source, about: Sequence[str], holders: Mapping[str, int], files: int, taken: set[str]
) -> Proposal | None:
    for rank, term in enumerate(about):
        shared = holders[term]
        if shared < _FEWEST or (files > _FEWEST and shared > _MOST_SHARE * files):
            continue
        folder = folder_name(term)
        above, name = posixpath.split(source.path)
        if not folder or folder_name(posixpath.basename(above)) == folder:
            return None
        target = posixpath.join(folder, name)
        if target in taken or len(target) > MOST_PATH_CHARS:
            return None
        rationale = f"topic “{term}” is shared with {shared - 1} other file{'s' * (shared > 2)}"
        sure = round(_SURE - _LESS * rank, 4)
        evidence = Occurrence(source.id, 0)
        return Proposal(ProposalKind.FILE_MOVE, source.path, target, sure, rationale, (evidence,))
    return None


def folder_name(term: str) -> str:
    """Convert a term to the name of a folder: `dead-letter-queue`."""
    plain = unicodedata.normalize("NFKC", term).casefold()
    return _NO_NAME.sub("-", plain).strip("-")[:_FOLDER_CHARS].strip("-")


class ProposalsStep(Service):
    """Generates proposals from the extracted terms that are not known yet."""

    def __init__(self) -> None:
        self._redis: Redis | None = None
        self._tag = ""

    async def start(self, services: WorkerServices) -> None:
        self._redis, self._tag = services.redis, services.keys.tag

    async def __call__(self, context: StepContext) -> StepOutput:
        """The best proposals, in order."""
        options = context.options
        found = await load_extraction(context)
        entries = await self._load_terms(context)
        sources = await packed.load_sources(context) if options.get("organize") else []
        proposals = await context.compute(
            make_proposals,
            found,
            entries,
            sources,
            int(options.get("limit", LIMIT)),
            float(options.get("min_confidence", MIN_CONFIDENCE)),
        )
        return StepOutput(
            f"Generated {plural(len(proposals), 'proposal')}",
            [
                StepItem(each.payload(), ItemStatus.PROPOSED.value, each.confidence)
                for each in proposals
            ],
        )

    async def _load_terms(self, context: StepContext) -> list[TermEntry]:
        if self._redis is None:
            return []
        keys = RagKeys(context.namespace, context.tenant, self._tag)
        page = await OntologyReader(self._redis).list(keys, limit=MOST_TERMS)
        return page.entries


def make_proposals(
    findings: ExtractionResult,
    entries: Sequence[TermEntry],
    sources: Sequence[Source],
    limit: int,
    min_confidence: float,
) -> list[Proposal]:
    """Generate the proposals; moves of files only if sources are given."""
    moves = propose_moves(sources, findings)
    return propose(findings, KnownTerms(entries), limit, min_confidence, moves)
