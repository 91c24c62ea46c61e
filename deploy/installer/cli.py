"""The command line: what was asked for, who may ask, and how it ended."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.installer.backup import backup
from deploy.installer.errors import InstallError, NotAllowed, Unsuitable
from deploy.installer.host import Host
from deploy.installer.install import Workshop, install
from deploy.installer.layout import Layout
from deploy.installer.options import Options
from deploy.installer.restore import restore
from deploy.installer.say import Say
from deploy.installer.sources import Sources
from deploy.installer.status import status
from deploy.installer.uninstall import uninstall
from deploy.installer.units import Systemd

_EPILOG = """\
exit codes:
  0   done, or nothing to do
  1   a step failed; what was there before is back
  2   the command line is wrong
  3   status: not installed, or not all of it runs
  69  something needed is missing or too old (Redis, Python, venv, a wheel)
  70  it was installed and does not work; an upgrade was rolled back
  77  only root may do this
  78  an option, or something on this box, stands in the way
  130 interrupted; what was there before is back
"""
_LOCK = "/run/lock/sluice-install.lock"
INTERRUPTED = 130


def parse(argv: Sequence[str]) -> Options:
    """The command line as options."""
    parser = argparse.ArgumentParser(
        prog="install.sh",
        description="Installs Sluice on this box: users, Redis, gateway, workers, units.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--dry-run", action="store_true", help="show what would change, only")
    common.add_argument("--root", type=Path, default=Path("/"), help="write below DIR, only files")
    common.add_argument("--yes", action="store_true", help="ask nothing")
    making = argparse.ArgumentParser(add_help=False)
    making.add_argument("--wheelhouse", type=Path, help="packages from DIR, not the internet")
    making.add_argument("--python", type=Path, help="interpreter of the releases, 3.10 or newer")
    making.add_argument("--redis-server", type=Path, help="this program, 6.2 or newer")
    making.add_argument("--redis-port", type=int, help="Redis on loopback TCP, too; 0 for not")
    making.add_argument("--listen", metavar="ADDR:PORT", help="default 127.0.0.1:8080")
    making.add_argument(
        "--with-model", action="store_true", help="a small model too; its worker replaces echo"
    )
    making.add_argument("--no-start", action="store_true", help="install and enable only")
    making.add_argument("--health-timeout", type=float, default=60.0, help="seconds (60)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("install", parents=[common, making], help="install, or mend")
    commands.add_parser("upgrade", parents=[common, making], help="with a way back")
    removing = commands.add_parser("uninstall", parents=[common], help="leaves the data")
    removing.add_argument("--purge", action="store_true", help="the data too")
    commands.add_parser("status", parents=[common], help="what is installed and runs")
    for name, what in (("backup", "save data and settings"), ("restore", "put them back")):
        saving = commands.add_parser(name, parents=[common], help=what)
        saving.add_argument("file", type=Path)
    found = vars(parser.parse_args(argv))
    found["start"] = not found.pop("no_start", False)
    found["health_timeout_s"] = found.pop("health_timeout", 60.0)
    found["root"] = found["root"].absolute()
    return Options(**found)


def main(argv: Sequence[str], shop: Workshop | None = None) -> int:
    """Run one command; returns the exit code."""
    options = parse(argv)
    say = shop.say if shop is not None else Say()
    os.umask(0o022)
    try:
        return _run(options, shop or _workshop(options, say))
    except InstallError as error:
        print(f"install.sh: {error.what}", file=sys.stderr)
        if error.fix:
            print(error.fix, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read us has seen enough; keep the interpreter from trying
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return InstallError.exit_code
    except OSError as error:
        print(f"install.sh: {error}", file=sys.stderr)
        print("Look at the disk and the permissions there, then run this again.", file=sys.stderr)
        return InstallError.exit_code
    except KeyboardInterrupt:
        print("install.sh: interrupted", file=sys.stderr)
        return INTERRUPTED


def _workshop(options: Options, say: Say) -> Workshop:
    host = Host(Layout(options.root))
    return Workshop(host, say, Systemd(host), Sources(wheelhouse=options.wheelhouse))


def _run(options: Options, shop: Workshop) -> int:
    if options.command == "status":
        return status(shop)
    if options.wheelhouse is not None and not options.wheelhouse.is_dir():
        raise Unsuitable(f"there is no directory {options.wheelhouse}", "See --wheelhouse.")
    if options.root == Path("/") and os.geteuid() != 0 and not options.dry_run:
        raise NotAllowed("only root may install", "Run it with sudo, or look first: --dry-run.")
    with _alone(shop, options):
        if options.command in ("install", "upgrade"):
            install(shop, options)
        elif options.command == "uninstall":
            uninstall(shop, options)
        elif options.command == "backup":
            backup(shop, options)
        elif options.command == "restore":
            restore(shop, options)
    return 0


@contextmanager
def _alone(shop: Workshop, options: Options) -> Iterator[None]:
    """Two installers at once would undo each other."""
    if options.dry_run or not shop.host.is_live:
        yield
        return
    with open(_LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InstallError("another install.sh is at work", "Wait for its end.") from None
        yield
        os.unlink(_LOCK)
