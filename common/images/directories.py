"""Where the files of images lie."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.image_settings import SharedImageSettings


def spool_dir(settings: SharedImageSettings, data_dir: str) -> Path:
    """Where uploads wait."""
    return Path(settings.image_spool_dir or Path(data_dir) / "images" / "spool")


def store_dir(settings: SharedImageSettings, data_dir: str) -> Path:
    """Where processed images lie."""
    return Path(settings.image_store_dir or Path(data_dir) / "images" / "store")
