"""Limits on the jobs that features start with their own scripts."""

from __future__ import annotations

import pytest

from common.contracts.images import ImageFact
from common.contracts.queue import AdmissionAnswer, AdmissionFact
from common.contracts.workflow.operations import WorkflowFact
from common.features.images.types import ImageAnswer
from common.features.workflows.types import WorkflowAnswer


@pytest.mark.parametrize("answers", [ImageAnswer, WorkflowAnswer])
def test_every_feature_uses_the_same_rejection_codes(
    answers: type[ImageAnswer] | type[WorkflowAnswer],
) -> None:
    assert AdmissionAnswer.FULL == answers.FULL
    assert AdmissionAnswer.RATE == answers.RATE
    assert AdmissionAnswer.QUOTA == answers.QUOTA


@pytest.mark.parametrize("facts", [ImageFact, WorkflowFact])
def test_every_feature_uses_the_same_names_of_details(
    facts: type[ImageFact] | type[WorkflowFact],
) -> None:
    assert AdmissionFact.BACKLOG == facts.BACKLOG
    assert AdmissionFact.WAIT_MS == facts.WAIT_MS
    assert AdmissionFact.ACTIVE == facts.ACTIVE
