"""`status`: shows what is installed and whether it is running."""

from __future__ import annotations

from deploy.installer import releases
from deploy.installer.errors import InstallError
from deploy.installer.install import Context
from deploy.installer.layout import enabled
from deploy.installer.manifest import Manifest
from deploy.installer.model import ENGINE_LINK
from deploy.installer.probe import Gateway


def status(ctx: Context) -> int:
    """Returns 0 if every enabled unit runs and the gateway is ready, else 3 (also if not
    installed).
    """
    manifest = Manifest.load(ctx.layout.manifest)
    if manifest is None:
        ctx.output.line("not installed")
        return 3
    ctx.output.line(f"release   {manifest.release}")
    for home in (ctx.layout.gateway_home, ctx.layout.worker_home):
        kept = sorted(path.name for path in (home / "releases").glob("*"))
        ctx.output.line(f"{home}: uses {releases.current(home)}, has {', '.join(kept)}")
    if manifest.model:
        home = ctx.layout.model_home
        ctx.output.line(f"{home}: uses {releases.current(home, ENGINE_LINK)}")
    ctx.output.line(f"redis     {manifest.redis_release} at {manifest.redis_server}")
    ctx.output.line(f"listens   {manifest.listen}")
    if not ctx.host.is_live:
        return 0
    healthy = True
    for unit in dict.fromkeys((*enabled(manifest.model), *ctx.systemd.workers())):
        state = ctx.systemd.state_of(unit)
        expected = state == "active" or not ctx.systemd.is_enabled(unit)
        healthy = healthy and expected
        ctx.output.line(f"{unit:28} {state}{'' if expected else '   ← journalctl -u ' + unit}")
    try:
        Gateway(manifest.listen).ready()
        ctx.output.line("readiness ready")
    except InstallError as error:
        healthy = False
        ctx.output.line(f"readiness {error.what}")
    return 0 if healthy else 3
