"""The command line of install.sh: parses options, takes the lock, runs one command."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.installer import nofollow
from deploy.installer.backup import backup
from deploy.installer.errors import InstallError, NotAllowed, Unsuitable
from deploy.installer.host import Host
from deploy.installer.install import Context, install
from deploy.installer.layout import Layout
from deploy.installer.options import Options
from deploy.installer.output import Output
from deploy.installer.restore import restore
from deploy.installer.sources import Sources
from deploy.installer.status import status
from deploy.installer.uninstall import uninstall
from deploy.installer.units import Systemd

_EPILOG = """\
examples:
  sudo deploy/install.sh install --dry-run
  sudo deploy/install.sh install --with-model
  sudo deploy/install.sh upgrade --yes
  sudo deploy/install.sh backup /var/backups/sluice.tar.gz
  deploy/install.sh status

exit codes:
  0   done, or nothing to do
  1   a step failed; the changes were rolled back
  2   invalid command line
  3   status: not installed, or a unit is not running
  69  a requirement is missing or too old (Redis, Python, venv, a wheel)
  70  installed, but the health check failed; an upgrade was rolled back
  77  root permissions are required
  78  an invalid option, or a conflict on this host
  130 interrupted; the changes were rolled back
"""
_LOCK = "/run/sluice-install.lock"
INTERRUPTED = 130


def parse(argv: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="install.sh",
        description="Install Sluice on this host: users, Redis, gateway, workers, units.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--dry-run", action="store_true", help="only show what would change")
    common.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        default=Path("/"),
        help="write files below DIR; no users, no systemd",
    )
    common.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    install_options = argparse.ArgumentParser(add_help=False)
    install_options.add_argument(
        "--wheelhouse", type=Path, metavar="DIR", help="install packages from DIR, offline"
    )
    install_options.add_argument("--python", type=Path, help="Python 3.10 or newer to use")
    install_options.add_argument(
        "--redis-server", type=Path, help="path of redis-server (6.2 or newer) or valkey-server"
    )
    install_options.add_argument(
        "--redis-port", type=int, help="also open Redis on loopback TCP; 0: off"
    )
    install_options.add_argument(
        "--listen", metavar="ADDR:PORT", help="gateway address (127.0.0.1:8080)"
    )
    install_options.add_argument(
        "--with-model",
        action="store_true",
        help="also install a small model; its worker replaces echo",
    )
    install_options.add_argument(
        "--no-start", action="store_true", help="install and enable, do not start"
    )
    install_options.add_argument(
        "--health-timeout",
        type=float,
        default=60.0,
        help="seconds to wait for the health check (60)",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("install", parents=[common, install_options], help="install or repair")
    commands.add_parser(
        "upgrade", parents=[common, install_options], help="upgrade; rolls back on failure"
    )
    uninstall_parser = commands.add_parser(
        "uninstall", parents=[common], help="remove everything except the data"
    )
    uninstall_parser.add_argument("--purge", action="store_true", help="also remove the data")
    commands.add_parser("status", parents=[common], help="show what is installed and running")
    for name, what in (("backup", "save data and settings"), ("restore", "restore a backup")):
        backup_parser = commands.add_parser(name, parents=[common], help=what)
        backup_parser.add_argument("file", type=Path)
    values = vars(parser.parse_args(argv))
    values["start"] = not values.pop("no_start", False)
    values["health_timeout_s"] = values.pop("health_timeout", 60.0)
    values["root"] = values["root"].absolute()
    return Options(**values)


def main(argv: Sequence[str], ctx: Context | None = None) -> int:
    """Runs one command; returns the exit code."""
    options = parse(argv)
    output = ctx.output if ctx is not None else Output()
    os.umask(0o022)
    try:
        return _run(options, ctx or _context(options, output))
    except InstallError as error:
        print(f"install.sh: {error.what}", file=sys.stderr)
        if error.fix:
            print(error.fix, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader has closed the pipe; do not write to it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return InstallError.exit_code
    except OSError as error:
        print(f"install.sh: {error}", file=sys.stderr)
        print("Check free disk space and permissions, then run the command again.", file=sys.stderr)
        return InstallError.exit_code
    except KeyboardInterrupt:
        print("install.sh: interrupted", file=sys.stderr)
        return INTERRUPTED


def _context(options: Options, output: Output) -> Context:
    host = Host(Layout(options.root))
    return Context(host, output, Systemd(host), Sources(wheelhouse=options.wheelhouse))


def _run(options: Options, ctx: Context) -> int:
    if options.command == "status":
        return status(ctx)
    if options.wheelhouse is not None and not options.wheelhouse.is_dir():
        raise Unsuitable(
            f"directory {options.wheelhouse} does not exist",
            "Create it with `make wheelhouse`, then pass it to --wheelhouse.",
        )
    if options.root == Path("/") and os.geteuid() != 0 and not options.dry_run:
        raise NotAllowed("root permissions are required", "Run it with sudo, or try --dry-run.")
    with _exclusive(ctx, options):
        for directory in ctx.layout.directories:
            nofollow.refuse_link(directory)
        if options.command in ("install", "upgrade"):
            install(ctx, options)
        elif options.command == "uninstall":
            uninstall(ctx, options)
        elif options.command == "backup":
            backup(ctx, options)
        elif options.command == "restore":
            restore(ctx, options)
    return 0


@contextmanager
def _exclusive(ctx: Context, options: Options) -> Iterator[None]:
    """Holds a lock: two installers at once would undo each other's changes."""
    if options.dry_run or not ctx.host.is_live:
        yield
        return
    with open(_LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InstallError(
                "another install.sh is running", "Wait until it has finished."
            ) from None
        yield
        os.unlink(_LOCK)
