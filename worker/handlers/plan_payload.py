"""What a plan job may ask for, and the form in which a model is to answer it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from worker.handlers.chat_payload import TEXT_CHARS, Sampling

#: Longest texts of a step: what a small model is held to, so that it comes to an end.
TITLE_CHARS = 100
DETAIL_CHARS = 300
#: Steps that a step may wait for.
MOST_DEPENDENCIES = 8
#: Tokens that the longest plan takes, for each step and for the rest.
TOKENS_PER_STEP = 160
TOKENS_BESIDE = 96

# In words, without an example: small models answer with the example.
_SYSTEM = """\
You make plans. Divide the goal into at most {most} steps which, one after the other, lead to it. \
Answer with JSON and nothing else: an object with one member "steps", a list of objects. Each has \
a "title" of a few words that say what to do, a "detail" of one sentence that says how, and \
"depends_on", a list of the numbers of the steps that must be finished first. The first step has \
the number 1. A step that can begin at once depends on nothing."""


class PlanPayload(Sampling):
    """A goal, what should be known about it, and how many steps there may be."""

    goal: str = Field(min_length=1, max_length=TEXT_CHARS)
    context: str | None = Field(None, max_length=TEXT_CHARS)
    max_steps: int = Field(8, ge=1, le=50)

    def conversation(self) -> list[dict[str, Any]]:
        """All that is said to the model."""
        asked = f"Goal: {self.goal}"
        if self.context:
            asked = f"{self.context}\n\n{asked}"
        return [
            {"role": "system", "content": _SYSTEM.format(most=self.max_steps)},
            {"role": "user", "content": asked},
        ]

    @property
    def most_tokens(self) -> int:
        """What was asked for, else enough for the longest plan."""
        return self.max_tokens or TOKENS_BESIDE + TOKENS_PER_STEP * self.max_steps

    def response_format(self) -> dict[str, Any]:
        """The plan's form, for servers that hold a model to it."""
        step: dict[str, Any] = {
            "title": {"type": "string", "minLength": 1, "maxLength": TITLE_CHARS},
            "detail": {"type": "string", "maxLength": DETAIL_CHARS},
        }
        if self.max_steps > 1:
            step["depends_on"] = {
                "type": "array",
                "maxItems": MOST_DEPENDENCIES,
                "items": {"type": "integer", "enum": list(range(1, self.max_steps))},
            }
        steps = {
            "type": "array",
            "minItems": 1,
            "maxItems": self.max_steps,
            "items": _object(step),
        }
        form = {"name": "steps", "strict": True, "schema": _object({"steps": steps})}
        return {"type": "json_schema", "json_schema": form}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
