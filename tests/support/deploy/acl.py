"""A Redis server configured like an installed one, below a temporary directory."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from common.contracts.jobs import JobKeys
from deploy.installer import redis_server
from deploy.installer.acl import users_acl
from deploy.installer.host import Host
from deploy.installer.layout import REDIS_ROLES, Layout
from deploy.installer.redis_conf import LOCAL_CONF, redis_conf
from deploy.installer.units import gateway_drop_in
from tests.support.processes.worker import TIMEOUT_S, wait_until

PASSWORDS = {role: f"{role}-secret" for role in REDIS_ROLES}
MEMORY_BYTES = 8 << 30


class InstalledRedis:
    """Runs `redis-server` with the generated files; their paths are moved below a directory."""

    def __init__(self, binary: str, local: str = LOCAL_CONF, home: JobKeys | None = None) -> None:
        self.server = redis_server.find(Path(binary))
        self.dir = Path(tempfile.mkdtemp(prefix="sluice-acl-"))
        self.socket = self.dir / "redis.sock"
        conf = redis_conf(self.server, 0, MEMORY_BYTES)
        for installed in ("/etc/sluice", "/run/sluice", "/var/lib/sluice/redis"):
            conf = conf.replace(installed, str(self.dir))
        (self.dir / "redis.conf").write_text(conf)
        (self.dir / "redis-local.conf").write_text(local)
        acl = users_acl(self.server, home or JobKeys(), PASSWORDS)
        (self.dir / "users.acl").write_text(acl)
        self._log = (self.dir / "log").open("wb")
        self.process = self._start()
        self._clients: list[redis.Redis] = []
        self.admin = self.client("admin")
        wait_until(self._answers)

    def _start(self) -> subprocess.Popen[bytes]:
        command = [str(self.server.path), str(self.dir / "redis.conf")]
        return subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def restart(self) -> None:
        """Shuts the server down cleanly and starts it again."""
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
        self.process = self._start()
        wait_until(self._answers)

    @property
    def has_selectors(self) -> bool:
        return self.server.is_at_least(7)

    @property
    def gateway_settings(self) -> dict[str, str]:
        """Environment that the installer sets in the gateway's unit for this server."""
        _, content = gateway_drop_in(Host(Layout(self.dir)), self.server)
        return dict(re.findall(r"^Environment=(\w+)=(.*)$", content or "", re.MULTILINE))

    @property
    def log(self) -> str:
        return (self.dir / "log").read_text()

    def url(self, role: str) -> str:
        return f"unix://{role}:{PASSWORDS[role]}@{self.socket}"

    def client(self, role: str) -> redis.Redis:
        client: redis.Redis = redis.Redis.from_url(
            self.url(role), retry=Retry(NoBackoff(), 0), decode_responses=True, protocol=2
        )
        self._clients.append(client)
        return client

    def refusals(self) -> set[tuple[str, str]]:
        """Users and commands that Redis denied, from ACL LOG."""
        entries: Any = self.admin.acl_log()
        return {(entry["username"], entry["object"]) for entry in entries}

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return bool(self.admin.ping())
        except redis.ConnectionError:
            return False

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.process.terminate()
        self.process.wait(TIMEOUT_S)
        self._log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
