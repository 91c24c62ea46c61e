"""A custom workflow: from a list of commits to release notes that a person has reviewed.

    PYTHONPATH=examples/workflow WORKER_HANDLERS=release_notes python -m sluice.worker

Then, with the gateway running:

    git log --format=%s v1.2..HEAD | jq -Rs '{workflow: "release_notes_v1", auto_advance: true,
      steps: {collect: {log: .}, publish: {version: "1.3"}}}' |
      curl -s localhost:8080/api/workflow/jobs -H 'Content-Type: application/json' -d @-

The job collects the changes, proposes a line for each of them, and waits for a review. Approve,
reject or edit the lines:

    curl -s localhost:8080/api/workflow/jobs/$JOB/results?step=draft
    curl -s localhost:8080/api/workflow/jobs/$JOB/steps/review/execute \
      -H 'Content-Type: application/json' -d '{"payload": {"decisions":
        [{"id": "d_001", "action": "approve"}, {"id": "d_002", "action": "reject"}]}}'

After all decisions, `publish` writes the notes: `…/results?step=publish`.

A workflow is a declaration and a function for each step. The declaration lists the steps in order
with their weights for the progress (they sum to 1), the step that proposes, and the step that waits
for a review. A worker may die at any time; the step then starts again in any worker. So a step
changes nothing itself: it returns its output, which is stored exactly once.
"""

from __future__ import annotations

import json
import re

from sluice.worker import (
    DraftState,
    ItemStatus,
    StepContext,
    StepDefinition,
    StepError,
    StepItem,
    StepKind,
    StepOutput,
    WorkflowDefinition,
    Workflows,
)

#: The gateway validates options before the step starts.
_COLLECT = {
    "type": "object",
    "properties": {"log": {"type": "string", "maxLength": 200_000}},
    "required": ["log"],
    "additionalProperties": False,
}
_PUBLISH = {
    "type": "object",
    "properties": {"version": {"type": "string", "pattern": "^[0-9A-Za-z.+-]{1,40}$"}},
    "additionalProperties": False,
}

RELEASE_NOTES = WorkflowDefinition(
    "release_notes_v1",
    (
        StepDefinition("collect", "c", "change", 0.2, options_schema=_COLLECT),
        StepDefinition("draft", "d", "note", 0.3, proposes=True),
        StepDefinition("review", "r", "decision", 0.3, kind=StepKind.REVIEW, reviews="draft"),
        StepDefinition(
            *("publish", "n", "notes", 0.2),
            draft=DraftState.SAVING,
            settles=True,
            timeout_s=60,
            options_schema=_PUBLISH,
        ),
    ),
    "Writes release notes from a list of commits; a person decides which ones are included.",
)

_SECTIONS = {"feat": "Added", "fix": "Fixed", "perf": "Improved", "security": "Security"}
_FIRST_WORDS = {"add": "Added", "fix": "Fixed", "remove": "Removed", "speed": "Improved"}
_CONVENTIONAL = re.compile(r"(?P<kind>[a-z]+)(\((?P<scope>[^)]*)\))?!?:\s+(?P<text>.+)")
_IGNORED = re.compile(r"(merge|fixup!|squash!|wip)\b", re.IGNORECASE)


async def collect(context: StepContext) -> StepOutput:
    """One item per change, without duplicates."""
    lines = (" ".join(line.split()) for line in context.options["log"].splitlines())
    changes = list(dict.fromkeys(line for line in lines if line and not _IGNORED.match(line)))
    if not changes:
        # Permanent: the job fails with this message. (TransientError would be retried.)
        raise StepError("no_changes", "the log contains no changes; use one line per commit")
    return StepOutput(
        f"Collected {len(changes)} changes", [StepItem({"subject": each}) for each in changes]
    )


async def draft(context: StepContext) -> StepOutput:
    """One proposal per change. The text is computed in another process."""
    changes = [json.loads(item.payload)["subject"] for item in await context.items("collect")]
    notes: list[StepItem] = []
    for start in range(0, len(changes), 100):
        for section, text, confidence in await context.compute(
            notes_of, changes[start : start + 100]
        ):
            payload = {"section": section, "to": text}
            notes.append(StepItem(payload, ItemStatus.PROPOSED.value, confidence))
        await context.progress(len(notes), len(changes))
    return StepOutput(f"Proposed {len(notes)} lines", notes)


def notes_of(subjects: list[str]) -> list[tuple[str, str, float]]:
    """Section, text and confidence of each subject. Runs in a process of the pool."""
    return [_note_of(subject) for subject in subjects]


def _note_of(subject: str) -> tuple[str, str, float]:
    conventional = _CONVENTIONAL.match(subject)
    if conventional is not None:
        scope, text = conventional["scope"], conventional["text"]
        words = f"{scope}: {text}" if scope else text
        return _SECTIONS.get(conventional["kind"], "Changed"), _sentence(words), 0.95
    first = subject.lower()
    for word, section in _FIRST_WORDS.items():
        if first.startswith(word):
            return section, _sentence(subject), 0.7
    return "Changed", _sentence(subject), 0.5


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:].rstrip(".")


async def publish(context: StepContext) -> StepOutput:
    """Writes the notes from the approved lines and marks these as `applied`."""
    approved = [item for item in await context.items("draft") if item.status is ItemStatus.APPROVED]
    sections: dict[str, list[str]] = {}
    for item in approved:
        note = json.loads(item.payload)
        sections.setdefault(note["section"], []).append(f"- {note['to']}")
    parts = [f"## {context.options.get('version', 'Unreleased')}"]
    parts += [f"### {name}\n\n" + "\n".join(lines) for name, lines in sorted(sections.items())]
    return StepOutput(
        f"Published {len(approved)} lines",
        [StepItem({"markdown": "\n\n".join(parts) + "\n", "lines": len(approved)})],
        # With the version that was read: if a line has changed meanwhile, the step fails with
        # `version_conflict` instead of publishing unapproved text.
        changed=[(item.id, ItemStatus.APPLIED.value, item.version) for item in approved],
        undo_token=context.undo_token,
    )


def register_workflows(workflows: Workflows) -> None:
    """Called once at start. A module may also have `register_tools` and `register`."""
    workflows.add(RELEASE_NOTES, {"collect": collect, "draft": draft, "publish": publish})
