"""Settings shared by all processes, and loading settings from the environment."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from sluice.common.contracts.jobs import (
    DEAD_LETTER_STREAM,
    INDEX_MAX,
    PARTITIONS_MAX,
    QUEUE_STREAM,
    WORKER_GROUP,
    JobKeys,
)
from sluice.common.contracts.queue import TENANT_LANE_PREFIX, TENANT_LANES_MAX, Lane
from sluice.common.errors import SettingsError
from sluice.common.redis.addresses import validate_url
from sluice.common.redis.partitions import Partitions, validate_queue_name

#: Masks the password in a URL, even an invalid one: everything before its last `@`.
_PASSWORD = re.compile(r"^([\w+]+:/*)?.*(?=@)|(password=)[^&]*", re.DOTALL | re.IGNORECASE)


#: Least characters of a signing key. With one signature, a receiver can try keys offline.
SIGNING_KEY_MIN_CHARS = 24


def checked_signing_key(value: SecretStr) -> SecretStr:
    """An empty key disables the feature; raises ValueError for a short one."""
    length = len(value.get_secret_value())
    if 0 < length < SIGNING_KEY_MIN_CHARS:
        raise ValueError(
            f"it has {length} characters, {SIGNING_KEY_MIN_CHARS} are the least; create one with "
            "`openssl rand -hex 32`"
        )
    return value


class SettingsPart(BaseModel):
    """Settings of one subject, inherited by the settings of a process.

    `defer_build`: pydantic builds a validator only for a class that is instantiated. The parts
    never are, and their validators would cost an idle worker about a megabyte.
    """

    # Names such as `model_url` are not pydantic's.
    model_config = ConfigDict(defer_build=True, validate_default=True, protected_namespaces=())


def split_names(value: str) -> list[str]:
    """The items of a comma-separated setting."""
    return [name.strip() for name in value.split(",") if name.strip()]


def process_name() -> str:
    """The default name of a process: host-pid."""
    return f"{socket.gethostname()}-{os.getpid()}"


class LaneSettings(SettingsPart):
    """Lanes in addition to the normal one."""

    lanes: str = Field(
        "",
        description="Lanes in addition to the normal one: `high`, `low` or `high,low`. A request "
        "selects one with `lane`. Workers fetch 8 high and 1 low message per 4 normal ones, and "
        "must have every lane that a gateway has.",
    )

    tenant_lanes: int = Field(
        0,
        ge=0,
        le=TENANT_LANES_MAX,
        description="Number of lanes over which the jobs of tenants are spread (at most 16), so "
        "that no tenant has to wait for another's whole backlog; 0 disables them. Must be the same "
        "for all gateways and workers.",
    )

    @field_validator("lanes")
    @classmethod
    def _known_lanes(cls, value: str) -> str:
        for name in split_names(value):
            if name not in (Lane.HIGH.value, Lane.LOW.value):
                raise ValueError(f"{name!r} is not a lane; write high, low, or high,low")
        return value

    @property
    def lane_names(self) -> tuple[str, ...]:
        """Each lane once: `high`, `low`, then those of tenants."""
        requested = split_names(self.lanes)
        named = [lane.value for lane in Lane if lane.value in requested]
        tenants = [f"{TENANT_LANE_PREFIX}{number}" for number in range(self.tenant_lanes)]
        return (*named, *tenants)


class CommonSettings(LaneSettings):
    """Settings of both gateway and worker."""

    #: The process's name in logs and traces.
    service: ClassVar[str] = "sluice"

    model_config = ConfigDict(frozen=True)

    redis_url: str | None = Field(
        None,
        description="URL of Redis: `redis://`, `rediss://` or `unix://` for one server, "
        "`redis+sentinel://` or `redis+cluster://` for several (see Scaling). Unset: Sluice starts "
        "a private Redis under SLUICE_DATA_DIR, shared by all processes that use that directory.",
    )
    sluice_data_dir: str = Field(
        ".sluice", description="Directory with the data, socket and log of the private Redis."
    )
    embedded_fsync: Literal["everysec", "always"] = Field(
        "everysec",
        description="`appendfsync` of the private Redis. `everysec` may lose up to two seconds of "
        "changes in a power cut, or if Redis is killed while the disk is slow; `always` loses "
        "nothing and is slower.",
    )
    queue_stream_key: str = Field(
        QUEUE_STREAM, min_length=1, description="Name of the queue stream."
    )
    worker_group: str = Field(
        WORKER_GROUP, min_length=1, description="Consumer group of the workers."
    )
    dlq_stream_key: str = Field(
        DEAD_LETTER_STREAM, min_length=1, description="Name of the dead-letter stream."
    )
    queue_partitions: int = Field(
        1,
        ge=1,
        le=PARTITIONS_MAX,
        description="Number of partitions, each with its own queue; must be the same for all "
        "gateways and workers, and must not change while jobs are queued. 1: keys are named as in "
        "the contract. 2 or more: for Redis Cluster, where each partition may be on a different "
        "server.",
    )
    job_index_max: int = Field(
        INDEX_MAX,
        ge=0,
        le=1_000_000,
        description="Number of jobs that `GET /v1/jobs` lists, newest first; each takes about 100 "
        "bytes of Redis memory. With several partitions the number is per partition. 0 disables "
        "the list and its index. Must be the same for all gateways and workers.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest severity that is logged: `debug`, `info`, `warning`, `error`."
    )
    log_format: Literal["auto", "text", "json", "journal"] = Field(
        "auto",
        description="`text` for people, `json` for one JSON object per line, `journal` for "
        "journald with fields such as JOB_ID. `auto`: `journal` under systemd, else `text`.",
    )
    max_memory_pressure: float = Field(
        0.0,
        ge=0,
        le=100,
        description="Take no new jobs while memory pressure (PSI `full avg10`, in percent) is at "
        "or above this value; 0 disables the check.",
    )
    min_available_mb: int = Field(
        0,
        ge=0,
        description="Take no new jobs while less than this many megabytes of memory are available; "
        "0 disables the check.",
    )
    max_temperature_c: float = Field(
        0.0,
        ge=0,
        le=150,
        description="Take no new jobs while the hottest sensor is at or above this temperature, "
        "in degrees Celsius; 0 disables the check.",
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
        """The key names of every partition."""
        keys = JobKeys(self.queue_stream_key, self.dlq_stream_key, self.job_index_max)
        return Partitions.create(keys, self.queue_partitions)

    @property
    def keys(self) -> JobKeys:
        """The key names of partition 0, which also holds all singleton data."""
        return self.partitions.home


Settings = TypeVar("Settings", bound=CommonSettings)


def load_settings(kind: type[Settings], **overrides: Any) -> Settings:
    """Load settings: overrides, then environment variables, then systemd credentials.

    Raises a SettingsError that names every invalid variable. The original exception contains
    passwords, so it is not chained.
    """
    try:
        values = {**_read_credentials(kind), **_read_environment(kind), **overrides}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read the systemd credentials: {error}") from None
    try:
        return kind(**values)
    except ValidationError as error:
        fields = kind.model_fields
        secret = {name for name, field in fields.items() if field.annotation is SecretStr}
        lines = [_explain(problem["loc"], problem["msg"], secret) for problem in error.errors()]
        raise SettingsError("; ".join(lines)) from None


def _read_environment(kind: type[CommonSettings]) -> dict[str, str]:
    """Settings from environment variables of any case; an empty variable counts as unset."""
    named = {name.lower(): value for name, value in os.environ.items() if value}
    return {name: named[name] for name in kind.model_fields if name in named}


def _read_credentials(kind: type[CommonSettings]) -> dict[str, str]:
    """Settings from the files of systemd's LoadCredential=, such as `redis_url`."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not os.path.isdir(directory):
        return {}
    files = {path.name.lower(): path for path in Path(directory).iterdir() if path.is_file()}
    return {name: files[name].read_text().strip() for name in kind.model_fields if name in files}


def _explain(location: tuple[int | str, ...], message: str, secret: set[str]) -> str:
    """The problem of a variable, with its value unless it is one of the secret ones."""
    name = str(location[0]).upper() if location else ""
    value, shown = os.environ.get(name), ""
    if value and name.lower() not in secret:
        masked = _PASSWORD.sub(lambda found: f"{found[1] or found[2] or ''}***", value)
        shown = f"{name}={masked!r}: "
    elif name:
        shown = f"{name}: "
    return f"{shown}{message.removeprefix('Value error, ')}"
