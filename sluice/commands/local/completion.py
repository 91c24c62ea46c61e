"""`sluice completion`: shell completion scripts, generated from the argument parsers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sluice.commands import COMMANDS
from sluice.errors import ExitCode

_INSTALL_LINES = {
    "bash": "sluice completion bash > ~/.local/share/bash-completion/completions/sluice",
    "zsh": "sluice completion zsh > ~/.zfunc/_sluice   (with ~/.zfunc in $fpath)",
    "fish": "sluice completion fish > ~/.config/fish/completions/sluice.fish",
}


@dataclass(frozen=True)
class Flag:
    """An option and its values."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """A command or one of its actions."""

    path: tuple[str, ...]
    help: str
    flags: list[Flag] = field(default_factory=list)
    actions: dict[str, Node] = field(default_factory=dict)
    #: The choices of its first positional argument.
    words: tuple[str, ...] = ()

    def all(self) -> Iterator[Node]:
        """This node and all nodes below it."""
        yield self
        for node in self.actions.values():
            yield from node.all()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a completion script for a shell."
    parser.epilog = "\n".join(["Examples:", *(f"  {line}" for line in _INSTALL_LINES.values())])
    parser.add_argument("shell", choices=tuple(_INSTALL_LINES))
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="do not print how to install the script"
    )


def run(arguments: argparse.Namespace) -> int:
    writers: dict[str, Callable[[Node], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
    print(writers[arguments.shell](command_tree()))
    if not arguments.quiet and sys.stdout.isatty():
        print(f"to install it: {_INSTALL_LINES[arguments.shell]}", file=sys.stderr)
    return ExitCode.OK


def command_tree() -> Node:
    """The tree of all commands, read from their parsers."""
    from sluice.cli import parser_for

    root = Node((), "")
    for name, command in COMMANDS.items():
        try:
            root.actions[name] = _node((name,), command.purpose, parser_for(name))
        except ModuleNotFoundError:  # needs the server packages, which are not installed
            root.actions[name] = Node((name,), command.purpose)
    return root


def _node(path: tuple[str, ...], help_text: str, parser: argparse.ArgumentParser) -> Node:
    flags: list[Flag] = []
    actions: dict[str, Node] = {}
    words: tuple[str, ...] = ()
    for action in parser._actions:
        if action.help is argparse.SUPPRESS:
            continue
        choices = tuple(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, below in action.choices.items():
                actions[name] = _node((*path, name), helps.get(name, ""), below)
        elif action.option_strings:
            names = tuple(action.option_strings)
            flags.append(Flag(names, _plain(action.help), action.nargs != 0, choices))
        elif choices and not words:
            words = choices
    return Node(path, _plain(help_text), flags, actions, words)


def _plain(text: str | None) -> str:
    """Help text without characters that a shell would interpret."""
    return (text or "").replace("%%", "%").translate(str.maketrans("", "", "'\"`\\[]$:"))


# -- bash ------------------------------------------------------------------------------------------


def bash(root: Node) -> str:
    """The script for bash; falls back to file names."""
    return f"""# Completion of sluice for bash.
_sluice() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}" path="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "${{path:+$path }}$word" in
            {_paths(root)}) path="${{path:+$path }}$word" ;;
        esac
    done
    local words="" values=""
    case "$path" in
{_cases(root)}
    esac
    case "$path $prev" in
{_value_cases(root)}
        *) values="$words" ;;
    esac
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
}}
complete -o default -F _sluice sluice"""


def _paths(root: Node) -> str:
    return "|".join(f'"{" ".join(node.path)}"' for node in root.all() if node.path)


def _cases(root: Node) -> str:
    lines = []
    for node in root.all():
        words = [*node.actions, *node.words, *(name for flag in node.flags for name in flag.names)]
        lines.append(f'        "{" ".join(node.path)}") words="{" ".join(words)}" ;;')
    return "\n".join(lines)


def _value_cases(root: Node) -> str:
    """Values of options: their choices, or file names."""
    lines = []
    for node in root.all():
        for flag in node.flags:
            if flag.takes_value:
                given = "|".join(f'"{" ".join((*node.path, name))}"' for name in flag.names)
                lines.append(f'        {given}) values="{" ".join(flag.choices)}" ;;')
    return "\n".join(lines)


# -- zsh -------------------------------------------------------------------------------------------


def zsh(root: Node) -> str:
    described = "\n".join(_described(node) for node in root.all())
    return f"""#compdef sluice
# Completion of sluice for zsh.
_sluice() {{
    local path_="" word prev="${{words[CURRENT-1]}}"
    local -a found
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "${{path_:+$path_ }}$word" in
            {_paths(root)}) path_="${{path_:+$path_ }}$word" ;;
        esac
    done
    case "$path_ $prev" in
{_zsh_values(root)}
    esac
    case "$path_" in
{described}
    esac
    _describe -o 'sluice' found || _files
}}
# As an autoloaded file this is the function body; when sourced, it has to be registered.
if [ "$funcstack[1]" = "_sluice" ]; then _sluice "$@"; else compdef _sluice sluice; fi"""


def _described(node: Node) -> str:
    pairs = [(name, below.help) for name, below in node.actions.items()]
    pairs += [(word, "") for word in node.words]
    pairs += [(name, flag.help) for flag in node.flags for name in flag.names]
    items = " ".join(f"'{name}:{text}'" if text else f"'{name}'" for name, text in pairs)
    return f'        "{" ".join(node.path)}") found=({items}) ;;'


def _zsh_values(root: Node) -> str:
    lines = []
    for node in root.all():
        for flag in node.flags:
            if flag.takes_value:
                given = "|".join(f'"{" ".join((*node.path, name))}"' for name in flag.names)
                action = f"compadd -- {' '.join(flag.choices)}" if flag.choices else "_files"
                lines.append(f"        {given}) {action}; return ;;")
    return "\n".join(lines)


# -- fish ------------------------------------------------------------------------------------------


def fish(root: Node) -> str:
    lines = [
        "# Completion of sluice for fish.",
        "function __sluice_at",
        "    set -l path",
        "    for word in (commandline -opc)[2..]",
        '        string match -q -- "-*" $word; or set path $path $word',
        "    end",
        '    test "$path[1..(count (string split " " -- $argv[1]))]" = "$argv[1]"',
        "end",
        "function __sluice_first",
        "    test (count (commandline -opc)) -eq 1",
        "end",
    ]
    for node in root.all():
        where = f"-n '__sluice_at \"{' '.join(node.path)}\"'" if node.path else "-n __sluice_first"
        for name, below in node.actions.items():
            lines.append(f"complete -c sluice -f {where} -a {name} -d '{below.help}'")
        if node.words:
            lines.append(f"complete -c sluice -f {where} -a '{' '.join(node.words)}'")
        lines += [f"complete -c sluice {where} {_fish_flag(flag)}" for flag in node.flags]
    return "\n".join(lines)


def _fish_flag(flag: Flag) -> str:
    parts = []
    for name in flag.names:
        parts.append(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}")
    if flag.choices:
        parts.append(f"-x -a '{' '.join(flag.choices)}'")
    elif flag.takes_value:
        parts.append("-r")
    return " ".join([*parts, f"-d '{flag.help}'"])
