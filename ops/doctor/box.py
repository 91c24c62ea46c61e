"""The machine as the doctor may see it: files, commands, HTTP and Redis, all of them injectable."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from common.contracts.jobs import JobKeys
from common.settings import GatewaySettings, WorkerSettings
from common.version import VERSION
from ops.doctor.finding import Unable
from ops.doctor.lines import DoctorLine, lines_to
from ops.doctor.queue_facts import QueueFacts, joined, read_queue
from ops.doctor.remedies import Remedies
from ops.doctor.server import Server
from ops.fetching import Fetch, fetch_url

#: Seconds a command or a request may take.
COMMAND_S = 5.0
REQUEST_S = 3.0
NOT_FOUND, TIMED_OUT = 127, 124
#: Where this is, the installer was.
INSTALLED_UNIT = "/etc/systemd/system/redis-gateway.service"
#: The same with `--with-model`.
MODEL_UNIT = "/etc/systemd/system/sluice-model.service"


class Output(NamedTuple):
    """What a command wrote, and its exit code."""

    code: int
    text: str


class Disk(NamedTuple):
    """A file system."""

    total_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int
    read_only: bool


Runner = Callable[[Sequence[str], float], Output]


def run_command(words: Sequence[str], timeout_s: float = COMMAND_S) -> Output:
    """Run a command without a terminal, for a limited time."""
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
    """The file system that a path is on; raises OSError."""
    seen = os.statvfs(path)
    return Disk(
        total_bytes=seen.f_blocks * seen.f_frsize,
        free_bytes=seen.f_bavail * seen.f_frsize,
        inodes=seen.f_files,
        free_inodes=seen.f_favail,
        read_only=bool(seen.f_flag & os.ST_RDONLY),
    )


@dataclass
class Box:
    """Everything a check may ask."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=dict)
    #: Where the gateway should answer.
    url: str = ""
    #: None where no Redis is named.
    redis: Server | None = None
    run: Runner = run_command
    fetch: Fetch = fetch_url
    disk: Callable[[Path], Disk] = disk_of
    #: Seconds since 1970.
    now: Callable[[], float] = time.time
    #: Of which version this command is.
    version: str = VERSION
    #: Who should own what only root may read.
    owner_uid: int = 0
    #: What gateway and worker would be set to; the defaults where they are not readable.
    gateway_settings: GatewaySettings = field(default_factory=GatewaySettings.model_construct)
    worker_settings: WorkerSettings = field(default_factory=WorkerSettings.model_construct)
    #: Why systemctl is not asked again.
    _no_systemctl: str = ""

    def path(self, name: str) -> Path:
        """A file of the machine, such as `/proc/meminfo`."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """A file's text; None where there is none or we may not."""
        try:
            return self.path(name).read_text(errors="replace").rstrip("\0\n")
        except OSError:
            return None

    @cached_property
    def remedies(self) -> Remedies:
        """How things are started and looked into here."""
        return Remedies(self.path(INSTALLED_UNIT).exists(), self.path(MODEL_UNIT).exists())

    @cached_property
    def server(self) -> Server:
        """The Redis, if it answers."""
        if self.redis is None:
            raise Unable("there is no Redis to look at")
        if not self.redis.answers:
            raise Unable("Redis does not answer")
        return self.redis

    @cached_property
    def local_server(self) -> Server:
        """The same, if it runs on this machine."""
        if not self.server.target.is_local:
            raise Unable("Redis runs on another machine; run the doctor there")
        return self.server

    @property
    def keys(self) -> JobKeys:
        """Our names in Redis."""
        return self.worker_settings.keys

    @cached_property
    def lines(self) -> tuple[DoctorLine, ...]:
        """Every partition of the queue; one, as a rule."""
        return lines_to(self.worker_settings.partitions, self.server)

    @cached_property
    def queue(self) -> QueueFacts:
        """How the queue stands, in all partitions and lanes together; read once."""
        group, lanes = self.worker_settings.worker_group, self.worker_settings.lane_names
        queues = [(line.client, line.keys) for line in self.lines]
        queues += [(line.client, line.keys.in_lane(lane)) for line in self.lines for lane in lanes]
        return joined([read_queue(client, keys, group) for client, keys in queues])

    def systemctl(self, *words: str) -> str:
        """What systemctl says, where systemd runs."""
        if not self.path("/run/systemd/system").is_dir():
            raise Unable("systemd does not run here")
        if self._no_systemctl:
            raise Unable(self._no_systemctl)
        output = self.run(("systemctl", "--no-pager", "--plain", "--no-legend", *words), COMMAND_S)
        if output.code in (NOT_FOUND, TIMED_OUT):
            self._no_systemctl = f"systemctl: {output.text.strip()}"
            raise Unable(self._no_systemctl)
        return output.text
