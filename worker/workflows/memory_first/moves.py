"""Where files belong: with the others that are about the same."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

from common.contracts.workflow import ProposalKind
from common.workflow.memory_first import MOST_PATH_CHARS
from worker.workflows.memory_first.findings import Findings
from worker.workflows.memory_first.proposing import Proposal
from worker.workflows.memory_first.terms import Place
from worker.workflows.memory_first.texts import Source

#: A folder is worth having for so many files, and not for all of them.
_FEWEST: Final = 2
_MOST_SHARE: Final = 0.7
#: Confidence for the first of the terms that a source is about, and how much less for each further.
_SURE, _LESS = 0.8, 0.08
_NO_NAME: Final = re.compile(r"[^\w-]+")
_FOLDER_CHARS: Final = 60


def moves(sources: Sequence[Source], findings: Findings) -> list[Proposal]:
    """For each file that lies elsewhere: the folder of the best term it shares with others."""
    files = [source for source in sources if source.path]
    holders: dict[str, int] = {}
    for source in files:
        for term in findings.about.get(source.id, ()):
            holders[term] = holders.get(term, 0) + 1
    taken = {source.path for source in sources if source.path}
    found: list[Proposal] = []
    for source in files:
        proposal = _move(source, findings.about.get(source.id, ()), holders, len(files), taken)
        if proposal is not None:
            taken.add(proposal.target)
            found.append(proposal)
    return found


def _move(
    source: Source, about: Sequence[str], holders: Mapping[str, int], files: int, taken: set[str]
) -> Proposal | None:
    for rank, term in enumerate(about):
        shared = holders[term]
        if shared < _FEWEST or (files > _FEWEST and shared > _MOST_SHARE * files):
            continue
        folder = folder_of(term)
        above, name = posixpath.split(source.path)
        if not folder or folder_of(posixpath.basename(above)) == folder:
            return None
        target = posixpath.join(folder, name)
        if target in taken or len(target) > MOST_PATH_CHARS:
            return None
        words = f"“{term}” is what it is about, as {shared - 1} other file{'s' * (shared > 2)}"
        sure = round(_SURE - _LESS * rank, 4)
        place = Place(source.id, 0)
        return Proposal(ProposalKind.FILE_MOVE, source.path, target, sure, words, (place,))
    return None


def folder_of(term: str) -> str:
    """A term as the name of a folder: `dead-letter-queue`."""
    plain = unicodedata.normalize("NFKC", term).casefold()
    return _NO_NAME.sub("-", plain).strip("-")[:_FOLDER_CHARS].strip("-")
