"""Commands that start processes and show logs: systemctl if installed, else direct commands."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.ops.redis_target import PRIVATE_SOURCE, RedisTarget


@dataclass(frozen=True, slots=True)
class Remedies:
    """The commands that fit this machine."""

    installed: bool
    #: The embedded model is installed, with a worker that uses it.
    with_model: bool = False
    #: The distribution's unit of Redis or Valkey.
    redis_unit: str = "redis-server"

    @property
    def start_worker(self) -> str:
        if self.installed:
            unit = "redis-worker@ai" if self.with_model else "redis-echo-worker"
            return f"sudo systemctl start {unit}"
        return "python -m sluice.worker.echo_worker (or `sluice up` for everything)"

    @property
    def one_more_worker(self) -> str:
        if self.installed:
            return "sudo systemctl enable --now redis-worker@2"
        return "python -m sluice.worker.echo_worker"

    @property
    def start_gateway(self) -> str:
        if self.installed:
            return "sudo systemctl start redis-gateway.socket redis-gateway"
        return "python -m sluice.gateway (or `sluice up` for everything)"

    def start_redis(self, target: RedisTarget) -> str:
        if self.installed:
            return "sudo systemctl start redis"
        if target.is_private:
            return "sluice up"
        if not target.is_local:
            return "start redis-server or valkey-server on its host"
        return f"sudo systemctl start {self.redis_unit}"

    def redis_log(self, target: RedisTarget) -> str:
        if self.installed:
            return "sudo journalctl -u redis -n 50 --no-pager"
        if target.is_private and target.socket_path:
            directory = target.source.removeprefix(PRIVATE_SOURCE).strip()
            return f"tail -50 {directory}/redis/redis.log"
        return f"sudo journalctl -u {self.redis_unit} -n 50 --no-pager"

    def log_of(self, unit: str) -> str:
        if self.installed:
            return f"sudo journalctl -u {unit} -n 50 --no-pager"
        return "check its output in the terminal where it was started"

    def restart(self, *unit_names: str) -> str:
        if self.installed:
            return f"sudo systemctl restart {' '.join(unit_names)}"
        return "stop it with Ctrl-C and start it again"
