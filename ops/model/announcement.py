"""The file `model.json` in the data directory, which announces the served model and its URL.

`sluice model serve` writes it; workers and `sluice up` with the same directory read it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from sluice.common.contracts.models import MODEL_FILE, ModelFileField
from sluice.ops.model import ModelSetupError


@dataclass(frozen=True)
class ServedModel:
    """The content of the file."""

    url: str
    model: str
    pid: int


@dataclass(frozen=True)
class Announcement:
    """The file `model.json` in a data directory."""

    directory: Path

    @property
    def path(self) -> Path:
        return self.directory / MODEL_FILE

    def prepare(self) -> None:
        """Check that the file can be written; raises ModelSetupError."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            temporary = self._temporary_path()
            temporary.touch()
            temporary.unlink()
        except OSError as error:
            raise ModelSetupError(
                f"{self.directory} cannot be written to ({error.strerror}); set SLUICE_DATA_DIR"
            ) from error

    def write(self, served: ServedModel) -> None:
        content = {
            ModelFileField.URL: served.url,
            ModelFileField.MODEL: served.model,
            ModelFileField.PID: served.pid,
        }
        temporary = self._temporary_path()
        temporary.write_text(json.dumps(content) + "\n")
        temporary.replace(self.path)

    def read(self) -> ServedModel | None:
        """The announced model; None if there is none."""
        try:
            content = json.loads(self.path.read_text())
            return ServedModel(
                str(content[ModelFileField.URL]),
                str(content[ModelFileField.MODEL]),
                int(content[ModelFileField.PID]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        """Remove the file, unless another process has written it since."""
        served = self.read()
        if served is not None and served.pid == os.getpid():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _temporary_path(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}")
