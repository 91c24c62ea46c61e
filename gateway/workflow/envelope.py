"""Raised anywhere below a route of the workflow API: becomes the answer, in its envelope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.contracts.workflow import WorkflowError
from gateway.problems import Problem
from gateway.workflow import error_view
from gateway.workflow.error_view import ErrorItem
from gateway.workflow.paths import job_id_in


class WorkflowProblem(Problem):
    """A refusal with all that the envelope can say of it.

    `extra`: members of the answer beside those that every refusal has, such as the item as it
    stands. `more`: what else is wrong with the request.
    """

    def __init__(
        self,
        status: int,
        code: WorkflowError | str,
        message: str,
        field: str | None = None,
        item_id: str | None = None,
        job_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        more: Sequence[ErrorItem] = (),
    ) -> None:
        name = code.value if isinstance(code, WorkflowError) else code
        super().__init__(status, name, message, headers=dict(headers or {}))
        self._job_id = job_id
        self._extra = extra
        self._items = (
            ErrorItem(code=name, message=message, field=field, item_id=item_id),
            *more,
        )

    def envelope(self, path: str) -> bytes:
        """As the workflow API words it."""
        job_id = self._job_id or job_id_in(path)
        return error_view.envelope(job_id, self._items, self.detail, self._extra)


def invalid_field(field: str, message: str) -> WorkflowProblem:
    """One member of a request is not what it should be."""
    return WorkflowProblem(422, WorkflowError.INVALID, f"{field}: {message}", field)


def no_such_job() -> WorkflowProblem:
    """It never was, or is no more, or is another's."""
    return WorkflowProblem(
        404,
        WorkflowError.NOT_FOUND,
        "There is no such workflow job. It may have expired; see WORKFLOW_TTL_S.",
    )
