"""The machine under test: files, commands, HTTP and Redis, all injectable for tests."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from sluice.common.contracts.jobs import JobKeys
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.common.version import SERVER_PROGRAMS, VERSION
from sluice.ops.doctor.finding import CheckSkipped
from sluice.ops.doctor.queue_facts import QueueFacts, merge_facts, read_queue
from sluice.ops.doctor.redis_server import PartitionServer, RedisServer, partition_servers
from sluice.ops.doctor.remedies import Remedies
from sluice.ops.http import Fetch, fetch_url

#: Timeouts of a command and of a request in seconds.
COMMAND_S = 5.0
REQUEST_S = 3.0
NOT_FOUND, TIMED_OUT = 127, 124
#: Present if the installer has run.
INSTALLED_UNIT = "/etc/systemd/system/redis-gateway.service"
#: Units of Debian packages.
PACKAGED_UNITS = "/lib/systemd/system"
#: Present if the installer ran with `--with-model`.
MODEL_UNIT = "/etc/systemd/system/sluice-model.service"


class Output(NamedTuple):
    """A command's exit code and output."""

    code: int
    text: str


class Disk(NamedTuple):
    """The space of a file system."""

    total_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int
    read_only: bool


Runner = Callable[[Sequence[str], float], Output]


def run_command(words: Sequence[str], timeout_s: float = COMMAND_S) -> Output:
    """Run a command without a terminal and with a timeout."""
    plain = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "SYSTEMD_LESS": ""}
    try:
        finished = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env={**os.environ, **plain},
        )
    except subprocess.TimeoutExpired:
        return Output(TIMED_OUT, f"no answer within {timeout_s:.0f} s")
    except OSError as error:
        return Output(NOT_FOUND, str(error))
    return Output(
        finished.returncode, (finished.stdout or finished.stderr).decode(errors="replace")
    )


def disk_of(path: Path) -> Disk:
    """The file system of a path; raises OSError."""
    found = os.statvfs(path)
    return Disk(
        total_bytes=found.f_blocks * found.f_frsize,
        free_bytes=found.f_bavail * found.f_frsize,
        inodes=found.f_files,
        free_inodes=found.f_favail,
        read_only=bool(found.f_flag & os.ST_RDONLY),
    )


@dataclass
class Machine:
    """Everything that a check can access."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=dict)
    #: The gateway's URL.
    url: str = ""
    #: None if no Redis is configured.
    redis: RedisServer | None = None
    run: Runner = run_command
    fetch: Fetch = fetch_url
    disk: Callable[[Path], Disk] = disk_of
    #: Seconds since 1970.
    now: Callable[[], float] = time.time
    #: The version of this command.
    version: str = VERSION
    #: The required owner of files that only root may read.
    owner_uid: int = 0
    #: The settings of gateway and worker; defaults if they cannot be read.
    gateway_settings: GatewaySettings = field(default_factory=GatewaySettings.model_construct)
    worker_settings: WorkerSettings = field(default_factory=WorkerSettings.model_construct)
    #: The error of an earlier call of systemctl, which is not called again after it.
    _systemctl_error: str = ""

    def path(self, name: str) -> Path:
        """An absolute path such as `/proc/meminfo`, below `root`."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """The text of a file; None if it does not exist or cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").rstrip("\0\n")
        except OSError:
            return None

    def disk_space(self, directory: Path) -> Disk:
        """The file system of a directory; skips the check if it cannot be read."""
        try:
            return self.disk(directory)
        except OSError as error:
            raise CheckSkipped(f"{directory}: {error.strerror}") from None

    @cached_property
    def remedies(self) -> Remedies:
        """The commands that start processes and show logs on this machine."""
        redis, valkey = (
            self.path(f"{PACKAGED_UNITS}/{name}.service").exists() for name in SERVER_PROGRAMS
        )
        unit = SERVER_PROGRAMS[1 if valkey and not redis else 0]
        return Remedies(self.path(INSTALLED_UNIT).exists(), self.path(MODEL_UNIT).exists(), unit)

    @cached_property
    def server(self) -> RedisServer:
        """The Redis server; skips the check if it does not answer."""
        if self.redis is None:
            raise CheckSkipped("no Redis is configured")
        if not self.redis.answers:
            raise CheckSkipped("Redis does not answer")
        return self.redis

    @cached_property
    def local_server(self) -> RedisServer:
        """The Redis server; skips the check if it runs on another machine."""
        if not self.server.target.is_local:
            raise CheckSkipped("Redis runs on another machine; run `sluice doctor` there")
        return self.server

    @property
    def keys(self) -> JobKeys:
        """The key names in Redis."""
        return self.worker_settings.keys

    @cached_property
    def partitions(self) -> tuple[PartitionServer, ...]:
        """The partitions of the queue; usually one."""
        return partition_servers(self.worker_settings.partitions, self.server)

    @cached_property
    def queue(self) -> QueueFacts:
        """The state of the queue over all partitions and lanes; read once."""
        group, lanes = self.worker_settings.worker_group, self.worker_settings.lane_names
        queues = [(each.client, each.keys) for each in self.partitions]
        queues += [
            (each.client, each.keys.for_lane(lane)) for each in self.partitions for lane in lanes
        ]
        return merge_facts([read_queue(client, keys, group) for client, keys in queues])

    def mark_redis_lost(self, error: Exception) -> None:
        """After Redis stopped answering: skip the remaining checks that need it."""
        if self.redis is not None:
            self.redis.error = error
        for name in ("server", "local_server"):
            self.__dict__.pop(name, None)

    def systemctl(self, *words: str) -> str:
        """The output of systemctl; skips the check if systemd is not running."""
        if not self.path("/run/systemd/system").is_dir():
            raise CheckSkipped("systemd is not running")
        if self._systemctl_error:
            raise CheckSkipped(self._systemctl_error)
        output = self.run(("systemctl", "--no-pager", "--plain", "--no-legend", *words), COMMAND_S)
        if output.code in (NOT_FOUND, TIMED_OUT):
            self._systemctl_error = f"systemctl: {output.text.strip()}"
            raise CheckSkipped(self._systemctl_error)
        return output.text
