"""The questions, and the expected passages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

FILE = Path(__file__).with_name("questions.json")


class Kind(Enum):
    """How a question is worded."""

    #: In the words of the document, or nearly.
    WORDS = "words"
    #: In other words with the same meaning.
    MEANING = "meaning"


@dataclass(frozen=True)
class Answer:
    """A passage of this document is correct if it contains the phrase."""

    document: str
    phrase: str


@dataclass(frozen=True)
class Question:
    """A question with all expected answers."""

    text: str
    kind: Kind
    answers: tuple[Answer, ...]

    def answered_by(self, document: str, passage: str) -> bool:
        return any(
            answer.document == document and answer.phrase in passage for answer in self.answers
        )


def load(path: Path = FILE) -> list[Question]:
    return [
        Question(
            entry["question"],
            Kind(entry["kind"]),
            tuple(Answer(answer["document"], answer["phrase"]) for answer in entry["answers"]),
        )
        for entry in json.loads(path.read_text())
    ]
