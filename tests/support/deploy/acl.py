"""A Redis server configured like an installed one, below a temporary directory."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from deploy.installer import redis_server
from deploy.installer.acl import users_acl
from deploy.installer.host import Host
from deploy.installer.layout import ADMIN, REDIS_ROLES, Layout
from deploy.installer.redis_conf import LOCAL_CONF, redis_conf
from deploy.installer.units import gateway_drop_in
from sluice.common.contracts.jobs import JobKeys
from tests.support.servers import RedisProcess

PASSWORDS = {role: f"{role}-secret" for role in REDIS_ROLES}
MEMORY_BYTES = 8 << 30


class InstalledRedis(RedisProcess):
    """A server with the generated files; their paths are moved below a directory."""

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
        super().__init__(
            [str(self.server.path), str(self.dir / "redis.conf")],
            self.dir / "log",
            unix_socket_path=str(self.socket),
            username=ADMIN,
            password=PASSWORDS[ADMIN],
            decode_responses=True,
            protocol=2,
        )
        self._clients: list[redis.Redis] = []
        self.admin: Any = self.client
        self.start()

    @property
    def has_selectors(self) -> bool:
        return self.server.is_at_least(7)

    @property
    def gateway_settings(self) -> dict[str, str]:
        """Environment that the installer sets in the gateway's unit for this server."""
        _, content = gateway_drop_in(Host(Layout(self.dir)), self.server)
        return dict(re.findall(r"^Environment=(\w+)=(.*)$", content or "", re.MULTILINE))

    def url(self, role: str) -> str:
        return f"unix://{role}:{PASSWORDS[role]}@{self.socket}"

    def client_of(self, role: str) -> redis.Redis:
        client: redis.Redis = redis.Redis.from_url(
            self.url(role), retry=Retry(NoBackoff(), 0), decode_responses=True, protocol=2
        )
        self._clients.append(client)
        return client

    def refusals(self) -> set[tuple[str, str]]:
        return {(entry["username"], entry["object"]) for entry in self.admin.acl_log()}

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.end()
        shutil.rmtree(self.dir, ignore_errors=True)
