"""Helpers for settings."""

from __future__ import annotations

import os
import socket

from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsPart(BaseSettings):
    """Settings of one subject, which the settings of a process inherit.

    Pydantic builds a validator only for a class that is instantiated: the parts never are, and
    their validators would cost an idle worker about a megabyte.
    """

    model_config = SettingsConfigDict(defer_build=True)


def split_names(value: str) -> list[str]:
    """A setting that is a list, separated by commas."""
    return [name.strip() for name in value.split(",") if name.strip()]


def process_name() -> str:
    """What a process is called that was given no name: host-pid."""
    return f"{socket.gethostname()}-{os.getpid()}"
