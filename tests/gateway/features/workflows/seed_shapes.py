"""The examples of docs/workflow-contract.md, and whether a response has their structure."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_CONTRACT = Path(__file__).parents[4] / "docs" / "workflow-contract.md"
_BLOCK = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)


def example(*members: str) -> Any:
    """The first JSON example of the page with these members."""
    examples = map(json.loads, _BLOCK.findall(_CONTRACT.read_text()))
    return next(each for each in examples if isinstance(each, dict) and set(members) <= set(each))


def extras(real: Any, shown: Any, at: str = "") -> set[str]:
    """Members of an answer beyond the example's; fails where one of the example's is missing, in
    another place, or of another type."""
    if isinstance(shown, dict):
        assert isinstance(real, dict), at
        assert [name for name in real if name in shown] == list(shown), at
        found = {f"{at}.{name}".lstrip(".") for name in real if name not in shown}
        return found.union(*(extras(real[name], shown[name], f"{at}.{name}") for name in shown))
    if isinstance(shown, list):
        assert isinstance(real, list), at
        return set().union(*(extras(each, shown[0], at) for each in real if shown))
    if shown is None:
        assert real is None or isinstance(real, str), at
    else:
        assert type(real) is type(shown), at
    return set()
