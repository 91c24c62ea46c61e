"""`sluice model`: its command line and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from common.errors import SluiceError
from common.settings.base import load_settings
from common.settings.models_dir import MODELS_DIR_VARIABLE, models_dir
from ops.model.catalogue import Purpose
from ops.model.engine import ServeOptions, default_threads
from ops.model.install import InstallPlan, install
from ops.model.serve import ServeSettings, is_verbose, resolve_model, serve, settings_for
from ops.model.status import as_json, status, status_lines

INTERRUPTED = 130
PORT = 8090
SLOTS, MAX_SLOTS = 2, 64
CONTEXT, MIN_CONTEXT, MAX_CONTEXT = 4096, 256, 1 << 20
MAX_THREADS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `install`, `status` and `serve` below `sluice model`."""
    parser.description = (
        "A small real model for trying and testing, offline once it is installed. For anything "
        "more, point MODEL_URL at llama-server, Ollama or another OpenAI-compatible server."
    )
    actions = parser.add_subparsers(dest="action", required=True)
    _add_install(actions.add_parser("install", help="engine and weights, about 300 MB on disk"))
    _add_serve(actions.add_parser("serve", help="serve it until Ctrl-C, for `sluice up` to find"))
    show = actions.add_parser("status", help="what is installed, and what is served")
    show.add_argument("-o", "--output", choices=("text", "json"), default="text")
    show.set_defaults(work=_status)


def _add_install(parser: argparse.ArgumentParser) -> None:
    parser.description = "Does only what is missing; an interrupted run is taken up by the next."
    add = parser.add_argument
    add("--only", choices=[each.value for each in Purpose], help="one of the models")
    add(
        "--dir",
        type=Path,
        help=f"where weights go (default: {MODELS_DIR_VARIABLE}, or this environment)",
    )
    add("--engine", type=Path, metavar="DIR", help="the engine as a directory for PYTHONPATH")
    add("--wheelhouse", type=Path, metavar="DIR", help="wheels from here, not the internet")
    add("--no-index", action="store_true", help="only where pip finds wheels without an index")
    parser.set_defaults(work=_install)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=_int_between(0, 65535), default=PORT, help=f"0 for any free one ({PORT})")
    add("--gguf", default="", metavar="FILE", help="another model than the installed one")
    add("--name", default="", help="by which it is asked for (default: the file's)")
    add(
        "--slots", type=_int_between(1, MAX_SLOTS), default=SLOTS, help=f"answers at once ({SLOTS})"
    )
    add(
        "--context",
        type=_int_between(MIN_CONTEXT, MAX_CONTEXT),
        default=CONTEXT,
        metavar="TOKENS",
        help=f"of one conversation ({CONTEXT})",
    )
    add("--threads", type=_int_between(0, MAX_THREADS), default=0, help="0: all cores but one (0)")
    parser.set_defaults(work=_serve)


def _int_between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return number


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
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
    print(f"{names}: {'installed' if done else 'nothing to do'}, in {plan.directory}")
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
