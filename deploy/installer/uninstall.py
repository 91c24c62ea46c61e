"""`uninstall`: removes everything except the data; `--purge` also removes the data."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.installer import distro_redis, nofollow, units, user_steps
from deploy.installer.consent import confirm
from deploy.installer.errors import Unsuitable
from deploy.installer.file_steps import Remove
from deploy.installer.install import Context
from deploy.installer.layout import SOCKET_UNIT, WORKER_UNITS, enabled
from deploy.installer.manifest import Manifest
from deploy.installer.options import Options
from deploy.installer.steps import Step, apply_all, show_all


@dataclass
class StopUnits(Step):
    """Stops and disables all units; the socket first, so that it does not start the gateway."""

    ctx: Context

    def pending(self) -> str | None:
        systemd = self.ctx.systemd
        if any(systemd.is_active(unit) or systemd.is_enabled(unit) for unit in _names(self.ctx)):
            return "stop and disable Sluice's units (running jobs get time to finish)"
        return None

    def apply(self) -> None:
        names = _names(self.ctx)
        with self.ctx.output.reminders("waiting for running jobs"):
            socket = [name for name in names if name == SOCKET_UNIT]
            self.ctx.systemd.stop([*socket, *names[::-1]])
        self.ctx.systemd.disable(names)


@dataclass
class Reload(Step):
    """Makes systemd forget the removed units."""

    ctx: Context
    due: bool

    def pending(self) -> str | None:
        return "reload systemd" if self.due and self.ctx.host.is_live else None

    def apply(self) -> None:
        self.ctx.systemd.reload()
        self.ctx.systemd.forget_failures()


def uninstall(ctx: Context, options: Options) -> None:
    layout = ctx.layout
    manifest = Manifest.load(layout.manifest)
    installed = manifest is not None or any(
        path.exists()
        for path in (layout.config, layout.gateway_home, layout.worker_home, layout.model_home)
    )
    if not installed and not (options.purge and layout.state.exists()):
        raise Unsuitable("Sluice is not installed", "There is nothing to remove.")
    known = manifest or Manifest()
    steps: list[Step] = [StopUnits(ctx)]
    for name in (path.name for path in units.unit_sources()):
        if _is_installed(ctx, name):
            steps += [Remove(layout.units / name), Remove(layout.units / f"{name}.d")]
    for drop_ins in layout.units.glob(f"{WORKER_UNITS}.d"):
        steps.append(Remove(drop_ins))
    steps += [
        Reload(ctx, installed),
        Remove(layout.command),
        Remove(layout.gateway_home),
        *_worker_home(ctx, options),
        Remove(layout.model_home),
        distro_redis.EnableDistroRedis(
            ctx.host, known.foreign_redis_enabled, known.foreign_redis_active
        ),
        Remove(layout.config, "settings and passwords"),
        Remove(layout.socket.parent),
        *_logs(ctx, options),
    ]
    if options.purge:
        steps.append(Remove(layout.state, "all jobs"))
    steps += _images(ctx, options)
    steps += user_steps.remove_users(ctx.host)
    if options.dry_run:
        count = show_all(steps, ctx.output)
        ctx.output.line(f"{count} changes; nothing was changed (dry run)")
        return
    if options.purge:
        what = f"All jobs in {layout.redis_data} and images in {layout.images} will be deleted."
        confirm(options, what, ctx.output)
    apply_all(steps, ctx.output)
    if layout.redis_data.exists():
        ctx.output.line(f"uninstalled; the jobs are kept in {layout.redis_data}")
        ctx.output.hint("The next `install` uses them again. To remove them, use --purge.")
    else:
        ctx.output.line("uninstalled")


def _logs(ctx: Context, options: Options) -> list[Step]:
    """Undelivered webhooks are kept if there are any: there may be no other copy."""
    logs = ctx.layout.logs
    if options.purge or (logs.is_dir() and not any(logs.iterdir())):
        return [Remove(logs, "undelivered webhooks")]
    return []


def _images(ctx: Context, options: Options) -> list[Step]:
    """Images are kept if there are any; their records are in the Redis data."""
    images = ctx.layout.images
    names = nofollow.file_names(images)
    # Hidden files are the id of the image store, which is useless without images.
    if options.purge or all(name.startswith(".") for name in names):
        return [Remove(images, "all images")]
    ctx.output.hint(f"images in {images} are kept (use --purge to remove them)")
    return []


def _worker_home(ctx: Context, options: Options) -> list[Step]:
    """Handlers that the operator wrote are kept."""
    home, handlers = ctx.layout.worker_home, ctx.layout.handlers
    if options.purge or not handlers.is_dir() or not any(handlers.iterdir()):
        return [Remove(home)]
    ctx.output.hint(f"your handlers in {handlers} are kept (use --purge to remove them)")
    return [Remove(path) for path in sorted(home.iterdir()) if path != handlers]


def _names(ctx: Context) -> list[str]:
    """Installed units, in start order.

    Without a unit file of Sluice, redis.service is the alias of Debian's redis-server.service.
    """
    others = [path.name for path in units.unit_sources() if "@" not in path.name]
    names = [*enabled(False), *(name for name in others if name not in enabled(False))]
    return [name for name in names if _is_installed(ctx, name)] + ctx.systemd.instances()


def _is_installed(ctx: Context, name: str) -> bool:
    path = ctx.layout.units / name
    return path.is_file() and not path.is_symlink()
