"""Options of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """Parsed and validated command line."""

    command: str
    file: Path | None = None
    dry_run: bool = False
    root: Path = Path("/")
    wheelhouse: Path | None = None
    python: Path | None = None
    redis_server: Path | None = None
    #: None keeps the value of the installation.
    redis_port: int | None = None
    listen: str | None = None
    #: False keeps an installed model.
    with_model: bool = False
    start: bool = True
    purge: bool = False
    yes: bool = False
    health_timeout_s: float = 60.0
