"""Tells workers and `sluice up` of the same data directory which model is served, and where."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from common.contracts.models import MODEL_FILE, PlaceField
from ops.model.errors import Unusable


@dataclass(frozen=True)
class Place:
    """What the file says."""

    url: str
    model: str
    pid: int


@dataclass(frozen=True)
class Announcement:
    """The file below a data directory."""

    directory: Path

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.directory / MODEL_FILE

    def prepare(self) -> None:
        """See that it can be written; raises Unusable."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            beside = self._beside()
            beside.touch()
            beside.unlink()
        except OSError as error:
            raise Unusable(
                f"{self.directory} cannot be written to ({error.strerror}); set SLUICE_DATA_DIR"
            ) from error

    def write(self, place: Place) -> None:
        """Whole, or not at all."""
        told = {
            PlaceField.URL.value: place.url,
            PlaceField.MODEL.value: place.model,
            PlaceField.PID.value: place.pid,
        }
        beside = self._beside()
        beside.write_text(json.dumps(told) + "\n")
        beside.replace(self.path)

    def read(self) -> Place | None:
        """What is announced; None where nothing is."""
        try:
            told = json.loads(self.path.read_text())
            return Place(
                str(told[PlaceField.URL.value]),
                str(told[PlaceField.MODEL.value]),
                int(told[PlaceField.PID.value]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        """Take it back, unless somebody else has announced another one since."""
        place = self.read()
        if place is not None and place.pid == os.getpid():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _beside(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")
