"""What the operator asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The command line, checked."""

    command: str
    file: Path | None = None
    dry_run: bool = False
    root: Path = Path("/")
    wheelhouse: Path | None = None
    python: Path | None = None
    redis_server: Path | None = None
    #: None keeps what an earlier run was told.
    redis_port: int | None = None
    listen: str | None = None
    #: False keeps what is there.
    with_model: bool = False
    start: bool = True
    purge: bool = False
    yes: bool = False
    health_timeout_s: float = 60.0
