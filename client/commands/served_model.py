"""Which model is served on this machine: what `sluice model serve` has left word of."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

#: Below SLUICE_DATA_DIR.
FILE = "model.json"
#: Seconds a server may take to show that it is there.
ANSWER_S = 2.0


class ServedModel(NamedTuple):
    """What the file says."""

    name: str
    url: str
    pid: int

    def answers(self) -> bool:
        """Whether somebody is there, loading or not."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=ANSWER_S):
                return True
        except urllib.error.HTTPError:
            return True
        except (OSError, ValueError):
            return False

    def is_running(self) -> bool:
        """Whether its process is."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # somebody else's
            return True
        return True


def served_model() -> ServedModel | None:
    """What is announced for this environment's data directory; None for nothing."""
    directory = os.environ.get("SLUICE_DATA_DIR") or ".sluice"
    try:
        told = json.loads((Path(directory) / FILE).read_text())
        return ServedModel(str(told["model"]), str(told["url"]), int(told["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
