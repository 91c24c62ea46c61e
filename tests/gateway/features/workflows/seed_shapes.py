"""The examples of contract.md under "Workflows", and whether a response has their structure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_CONTRACT = Path(__file__).parents[4] / "contract.md"
_SECTION = re.compile(r"^## [0-9. ]*Workflows$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples() -> list[Any]:
    """Every JSON example of the section."""
    section = _SECTION.search(_CONTRACT.read_text())
    assert section is not None, "contract.md has no section Workflows"
    return [json.loads(block) for block in _BLOCK.findall(section[1])]


def _with(*members: str) -> Any:
    return next(
        example
        for example in examples()
        if isinstance(example, dict) and set(members) <= set(example)
    )


def job_status() -> Any:
    return _with("success", "job")


def result_schema() -> Any:
    return _with("success", "step", "result")


def callback() -> Any:
    return _with("event_id", "emitted_at")


def extras(real: Any, shown: Any, at: str = "") -> set[str]:
    """Members of an answer beyond the example's; fails where one of the example's is missing, in
    another place, or of another type."""
    if isinstance(shown, dict):
        assert isinstance(real, dict), at
        assert [name for name in real if name in shown] == list(shown), at
        found = {f"{at}.{name}".lstrip(".") for name in real if name not in shown}
        for name in shown:
            found |= extras(real[name], shown[name], f"{at}.{name}")
        return found
    if isinstance(shown, list):
        assert isinstance(real, list), at
        found = set()
        for element in real if shown else ():
            found |= extras(element, shown[0], at)
        return found
    if shown is None:
        assert real is None or isinstance(real, str), at
    else:
        assert type(real) is type(shown), at
    return set()
