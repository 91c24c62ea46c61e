"""Settings that every process has, and how settings are read from the environment."""

from __future__ import annotations

import os
import re
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSettings

from common.contracts.jobs import (
    DEAD_LETTER_STREAM,
    INDEX_MAX,
    PARTITIONS_MAX,
    QUEUE_STREAM,
    WORKER_GROUP,
    JobKeys,
)
from common.errors import SettingsError
from common.redis.addresses import validate_url
from common.redis.partitions import Partitions, validate_queue_name
from common.settings.queue import LaneSettings

#: Where a URL, even a broken one, may hold a password: anywhere before its last `@`.
_PASSWORD = re.compile(r"^([\w+]+:/*)?.*(?=@)|(password=)[^&]*", re.DOTALL | re.IGNORECASE)


class CommonSettings(LaneSettings):
    """What gateway and worker must agree on."""

    #: The process's name in logs and traces.
    service: ClassVar[str] = "sluice"

    model_config = SettingsConfigDict(
        env_ignore_empty=True, extra="ignore", frozen=True, case_sensitive=False
    )

    redis_url: str | None = Field(
        None,
        description="`redis://`, `rediss://` or `unix://` URL of Redis, or one of several hosts: "
        "`redis+sentinel://`, `redis+cluster://` (see Scaling). Unset: a private Redis is started "
        "under SLUICE_DATA_DIR, shared by all processes of that directory.",
    )
    sluice_data_dir: str = Field(
        ".sluice", description="Where the private Redis keeps its data, socket and log."
    )
    embedded_fsync: Literal["everysec", "always"] = Field(
        "everysec",
        description="`appendfsync` of the private Redis. `everysec` may lose up to two seconds "
        "in a power cut, or if Redis is killed while the disk is slow; `always` loses nothing and "
        "is slower.",
    )
    queue_stream_key: str = Field(QUEUE_STREAM, min_length=1, description="The queue stream.")
    worker_group: str = Field(
        WORKER_GROUP, min_length=1, description="The consumer group that drains the queue."
    )
    dlq_stream_key: str = Field(
        DEAD_LETTER_STREAM, min_length=1, description="Where hopeless messages are put aside."
    )
    queue_partitions: int = Field(
        1,
        ge=1,
        le=PARTITIONS_MAX,
        description="Into how many partitions jobs are divided, each with a queue of its own; the "
        "same for all gateways and workers. 1: keys are exactly the contract's. More: for Redis "
        "Cluster, where every partition may lie on another server.",
    )
    job_index_max: int = Field(
        INDEX_MAX,
        ge=0,
        le=1_000_000,
        description="Newest jobs that `GET /v1/jobs` lists; 0 for none, and no index is kept. "
        "About 100 bytes of Redis each.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line that is written."
    )
    log_format: Literal["auto", "text", "json", "journal"] = Field(
        "auto",
        description="`text` for people, `json` for one JSON object a line, `journal` for journald "
        "with fields such as JOB_ID. `auto`: `journal` under systemd, else `text`.",
    )
    max_memory_pressure: float = Field(
        0.0,
        ge=0,
        le=100,
        description="Percent of time in which every task of the box stood still for want of memory "
        "(PSI `full avg10`) from which on no new work is begun; 0 for any.",
    )
    min_available_mb: int = Field(
        0, ge=0, description="Megabytes of free memory below which no new work is begun."
    )
    max_temperature_c: float = Field(
        0.0,
        ge=0,
        le=150,
        description="Degrees Celsius of the hottest sensor from which on no new work is begun; 0 "
        "for any.",
    )

    @field_validator("queue_stream_key")
    @classmethod
    def _no_partitions_name(cls, value: str) -> str:
        return validate_queue_name(value)

    @field_validator("redis_url")
    @classmethod
    def _known_scheme(cls, value: str | None) -> str | None:
        return None if value is None else validate_url(value)

    @property
    def partitions(self) -> Partitions:
        """The key functions for these names, partition by partition."""
        keys = JobKeys(self.queue_stream_key, self.dlq_stream_key, self.job_index_max)
        return Partitions.create(keys, self.queue_partitions)

    @property
    def keys(self) -> JobKeys:
        """The key functions of the home partition, where all is that there is one of."""
        return self.partitions.home


Settings = TypeVar("Settings", bound=CommonSettings)


def load_settings(kind: type[Settings], **overrides: Any) -> Settings:
    """Read settings from the environment, and those it does not name from systemd's credentials.

    A SettingsError names each bad variable. What it was raised from holds passwords, and is left
    out of the traceback.
    """
    try:
        return kind(_secrets_dir=_credentials(), **overrides)
    except ValidationError as error:
        lines = [_explain(problem["loc"], problem["msg"]) for problem in error.errors()]
        raise SettingsError("; ".join(lines)) from None
    except (OSError, UnreadableSettings) as error:
        cause = error.__cause__ or error
        raise SettingsError(f"the credentials cannot be read: {cause}") from None


def _credentials() -> str | None:
    """Where systemd has put files such as `redis_url`: LoadCredential= in the unit."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    return directory if os.path.isdir(directory) else None


def _explain(location: tuple[int | str, ...], message: str) -> str:
    name = str(location[0]).upper() if location else ""
    value, shown = os.environ.get(name), ""
    if value:
        masked = _PASSWORD.sub(lambda found: f"{found[1] or found[2] or ''}***", value)
        shown = f"{name}={masked!r}: "
    elif name:
        shown = f"{name}: "
    return f"{shown}{message.removeprefix('Value error, ')}"
