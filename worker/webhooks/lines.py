"""The lines of that file: a delivery that was given up, and what a redrive of it came to."""

from __future__ import annotations

import base64
from typing import Any

import orjson

from common import codec
from common.contracts.webhooks import LetterLine
from common.workflow.webhook_letters import Letter
from worker.webhooks.body import rfc3339
from worker.webhooks.sending import Attempted
from worker.webhooks.signing import PLAIN


def attempt_detail(number: int, attempted: Attempted, at_ms: int) -> bytes:
    """One attempt, as letters tell of it."""
    return codec.dumps(
        {
            LetterLine.ATTEMPT.value: number,
            LetterLine.STATUS.value: attempted.status,
            LetterLine.ERROR.value: attempted.error,
            LetterLine.RETRYABLE.value: attempted.retryable,
            LetterLine.AT.value: rfc3339(at_ms),
        }
    )


def letter_line(letter: Letter, at_ms: int) -> bytes:
    """All that it takes to send it again by other means. Never the secret, nor what it signed."""
    line: dict[str, Any] = {
        LetterLine.EVENT_ID.value: letter.event_id,
        LetterLine.EVENT_TYPE.value: letter.event_type,
        LetterLine.JOB_ID.value: letter.job_id,
        LetterLine.URL.value: letter.url,
        LetterLine.FAILED_AT.value: rfc3339(at_ms),
        LetterLine.PAYLOAD.value: orjson.Fragment(letter.body),
        LetterLine.ATTEMPTS.value: letter.attempts,
        LetterLine.DETAIL.value: orjson.Fragment(letter.detail),
        LetterLine.REPLAY.value: {
            LetterLine.METHOD.value: "POST",
            LetterLine.URL.value: letter.url,
            LetterLine.HEADERS.value: PLAIN,
            LetterLine.BODY_BASE64.value: base64.b64encode(letter.body).decode(),
            LetterLine.ENCODING.value: "utf-8",
        },
    }
    return codec.dumps(line)


def redrive_line(event_id: str, ok: bool, at_ms: int) -> bytes:
    """What became of sending it again."""
    return codec.dumps(
        {
            LetterLine.REDRIVEN_AT.value: rfc3339(at_ms),
            LetterLine.EVENT_ID.value: event_id,
            LetterLine.OK.value: ok,
        }
    )
