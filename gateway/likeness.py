"""Which dead letters failed alike: what they have in common, and a fingerprint of that.

Alike means: put aside for one reason, of one task, with one kind of error, and with messages that
differ only in numbers and ids.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

from common import codec
from common.contracts.jobs import DataField, QueueField
from common.queue import DeadLetter

#: Hexadecimal digits of a fingerprint.
DIGITS = 16
#: Of a message, what tells errors apart; the rest is cut off.
_MESSAGE_CHARS = 300
_NAME_CHARS = 100

#: A UUID, a hexadecimal number, or a long word of letters and digits; then any number that is
#: left. None of them looks at a character more than a few times, however long a word is.
_AN_ID = re.compile(
    r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,}\b"
    r"|\b(?=[0-9]*[a-z])(?=[a-z]*[0-9])[0-9a-z]{16,}\b",
    re.ASCII | re.IGNORECASE,
)
_A_NUMBER = re.compile(r"[0-9]+(?:[.,:-][0-9]+)*", re.ASCII)


class Likeness(NamedTuple):
    """What letters that failed alike have in common; empty where they do not say."""

    reason: str
    task: str
    kind: str
    message: str

    @property
    def fingerprint(self) -> str:
        """A short name of it."""
        return hashlib.sha256(codec.dumps(list(self))).hexdigest()[:DIGITS]


def likeness_of(letter: DeadLetter) -> Likeness:
    """What the letter says, whoever put it there."""
    error = codec.payload_object(letter.last_error) if letter.last_error else {}
    kind, message = error.get(DataField.KIND.value), error.get(DataField.MESSAGE.value)
    if kind is None and message is None:  # none of our errors: all of it is the message
        message = codec.text(letter.last_error)
    return Likeness(
        letter.reason[:_NAME_CHARS],
        _name(letter.original().get(QueueField.TASK.value)),
        _name(kind),
        mask(message) if isinstance(message, str) else "",
    )


def mask(message: str) -> str:
    """A message without what differs from job to job, on one line and not too long."""
    text = " ".join(message[: 4 * _MESSAGE_CHARS].split())
    return _A_NUMBER.sub("#", _AN_ID.sub("<id>", text))[:_MESSAGE_CHARS]


def _name(value: Any) -> str:
    return value[:_NAME_CHARS] if isinstance(value, str) else ""
