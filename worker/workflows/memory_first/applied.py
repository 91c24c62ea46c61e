"""What the step `apply` tells of what it did: a summary, its items, its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from common.contracts.workflow import MOST_ITEMS, ErrorMember, ProposalKind, WorkflowError
from worker.workflows.errors import fault
from worker.workflows.memory_first.planning import Failure, Plan
from worker.workflows.output import StepItem

#: Failures that are told one by one, and ids of documents.
_TOLD: Final = 100
_IDS_TOLD: Final = 200


@dataclass
class Documents:
    """What became of the sources."""

    #: Ids of those that were stored.
    added: list[str] = field(default_factory=list)
    #: How many were there before.
    known: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Applied:
    """What was done, or would be."""

    plan: Plan
    documents: Documents
    dry_run: bool = False

    @property
    def applied(self) -> int:
        """Proposals that are done with."""
        return len(self.plan.proposals) - len(self.plan.failures)

    @property
    def failed(self) -> int:
        """Proposals and sources that could not be."""
        return len(self.plan.failures) + len(self.documents.failures)

    def summary(self, terms: int) -> str:
        """One sentence; `terms` is how many changed."""
        begin = "Would apply" if self.dry_run else "Applied"
        failed = f"; {self.failed} failed" if self.failed else ""
        return (
            f"{begin} {_many(self.applied, 'proposal')}: {_many(terms, 'term')} changed, "
            f"{_many(len(self.documents.added), 'document')} added{failed}"
        )

    def items(self, terms: int, token: str = "") -> list[StepItem]:
        """First what was done in all, then each file that is to be moved."""
        about: dict[str, Any] = {
            "applied": self.applied,
            "failed": self.failed,
            "undo_token": token or None,
            "dry_run": self.dry_run,
            "terms": terms,
            "terms_before": self.plan.terms_before,
            "terms_after": self.plan.terms_after,
            "documents": len(self.documents.added),
            "documents_known": self.documents.known,
            "document_ids": self.documents.added[:_IDS_TOLD],
            "moves": len(self.plan.moves),
        }
        moves = [
            StepItem(
                {
                    "kind": ProposalKind.FILE_MOVE.value,
                    "proposal": move.proposal,
                    "from": move.path,
                    "to": move.to,
                }
            )
            for move in self.plan.moves
        ]
        return [StepItem(about), *moves][:MOST_ITEMS]

    def errors(self) -> list[dict[str, str]]:
        """What could not be done, and why."""
        return [
            *(_told(WorkflowError.STEP_FAILED, each) for each in self.plan.failures),
            *(_told(WorkflowError.SOURCE_FAILED, each) for each in self.documents.failures),
        ][:_TOLD]


def _told(code: WorkflowError, failure: Failure) -> dict[str, str]:
    return {**fault(code.value, failure.message), ErrorMember.SOURCE.value: failure.name}


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
