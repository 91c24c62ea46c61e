"""The project uses plain engineering English: the words of an older private vocabulary stay out.

Checked are prose and messages: Markdown without code, comments, docstrings, string literals with
several words (help texts, API descriptions, log lines, errors), and names of tests.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
#: Files and directories that are checked.
CLEAN = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"),
    *("contract.md", "docs", "Makefile", "pyproject.toml"),
    *("common", "gateway", "worker", "sluice", "ops"),
    *("deploy", "bench", "chaos", "examples", "tools"),
    "tests",
)
SUFFIXES = (
    *(".md", ".py", ".lua", ".js", ".mjs", ".css", ".html", ".sh"),
    *(".yml", ".toml", ".service", ".socket", ".target", ".template"),
)


class Word(NamedTuple):
    """A term of the old vocabulary, and what to write instead."""

    pattern: str
    instead: str
    #: Every match contains one of these, separated by `|`.
    stems: str


WORDS = (
    Word(
        r"nobody|somebody|everybody|whoever|whosoever",
        "name the actor: the worker, a client",
        "body|whoever|whosoever",
    ),
    Word(r"who (?:waits|works|watches|asks|may not|comes|looks)", "name the actor", "who "),
    Word(r"whose it is", "owner", "whose it is"),
    Word(r"(?<!there\s)(?:is|are|was|were) (?-i:none)(?! of)", "invalid, not a valid …", " none"),
    Word(r"of ours|ours|our own", "Sluice's, or nothing", "ours|our own"),
    Word(r"of (?:its|their|your|his|her) own", "separate, other; automatically", " own"),
    Word(
        r"(?:have|has|a|each|every|next|first|last) look|look(?:s|ed|ing)?"
        r"(?! (?:\w+ ){0,2}up\b| like\b|-ups?\b)",
        "check, poll, scan, search",
        "look",
    ),
    Word(r"whatever|whichever", "regardless of, any", "whatever|whichever"),
    Word(r"tell(?:s|ing)?", "report, notify, show", "tell"),
    Word(r"go(?:es)? on|going on|went on", "continue", " on"),
    Word(r"no worker lives|still lives", "no worker is connected", " lives"),
    Word(r"for want of", "because of missing", "for want of"),
    Word(r"beside", "besides, alongside, next to", "beside"),
    Word(r"foreign", "third-party", "foreign"),
    Word(r"told", "reported, notified, published", "told"),
    Word(r"crews?|riding|boarding", "queue consumer, prefetch", "crew|riding|boarding"),
    Word(r"deeds?", "action", "deed"),
    Word(r"wish(?:es|ed|ed-for)?", "option", "wish"),
    Word(r"trails?", "audit log", "trail"),
    Word(
        r"(?:fell|falls|fall) silent|silent workers?",
        "missed its heartbeat, lease expired",
        "silent",
    ),
    Word(r"signs? of life", "heartbeat", "of life"),
    Word(r"hand(?:s|ed|ing)? back", "release", "back"),
    Word(r"put(?:s|ting)? aside", "dead-letter", "aside"),
    Word(r"given up", "dead-lettered, attempts exhausted", "given up"),
    Word(r"(?<!dead\s)(?<!dead-)letters?", "dead letter", "letter"),
    Word(
        r"hopeless|robbed|mourn\w*|goodbyes?|farewells?",
        "a plain term",
        "hopeless|robbed|mourn|goodbye|farewell",
    ),
    Word(r"tak(?:es|en|ing) its leave|took its leave", "exited normally", "its leave"),
    Word(r"whereabouts", "address, locator", "whereabouts"),
    Word(r"(?<!-)box(?:es)?(?!-)", "host, machine", "box"),
    Word(r"doors?", "API, endpoint", "door"),
    Word(r"rooms?|houses?|households?", "package, capacity, space", "room|house"),
    Word(r"stor(?:y|ies)", "log, history", "stor"),
    Word(r"tall(?:y|ies)", "counters", "tall"),
    Word(
        r"likeness|patience|verdicts?",
        "signature, stall tolerance, outcome",
        "likeness|patience|verdict",
    ),
    Word(r"how-manieth|manners as", "number; with the rules of", "how-manieth|manners as"),
    Word(r"(?:free|own|more|no) places?|(?:waits?|waiting|wait) for a place", "slot", "place"),
    Word(r"places (?:for|of)|has a place|have places", "slot", "place"),
)
#: Phrases in which a word has its usual meaning, or which are names of the contract.
USUAL = re.compile(
    r"/v1/trail|/ui/trail|access:trail|\btrail\b(?=:)"  # the endpoint and the key of the audit log
    r"|letters?\s(?:and|or)\sdigits?|(?:lower|upper)[- ]?case\sletters?|(?:small|capital)\sletters?"
    r"|single letters?|\d+ letters?|letters? (?:of|in) the alphabet|and a letter"
    r"|bounding box(?:es)?|check ?box(?:es)?|text box(?:es)?"
    r"|decimal places",
    re.IGNORECASE,
)
#: Words that have their usual meaning in these files.
EXCEPTIONS: dict[str, str] = {
    "tests/test_language.py": ".*",  # the list itself
    "worker/features/workflows/memory_first/text/stopwords.py": ".*",  # lists of common words
    "worker/features/rag/text/languages.py": ".*",
    # Text analysis: letters of the alphabet.
    "worker/features/workflows/memory_first/*": "letters?",
    "tests/worker/features/workflows/memory_first/*": "letters?",
    "tests/worker/features/embedding/*": "letters?",
    "tests/worker/features/rag/*": "letters?|goes on",  # sample texts
    "tests/common/observability/*": "of its own",  # sample log lines
    "tests/common/process/test_systemd.py": "look",  # a parameter
    "tests/worker/features/webhooks/*": "look",
    "tests/worker/monitoring/*": "look(?:ed|ing)|telling",
    # A decoder reports its position.
    "chaos/*": "tell",
    # The former names of arguments.
    "CHANGELOG.md": "tell",
    "worker/features/tools/tool.py": "letters",  # valid characters
    "common/features/images/storage/base.py": "letters",
    "tests/common/features/images/*": "is none",  # names of tests about None
    # Bounding boxes of faces, and boxes of the HEIF format.
    "worker/features/images/*": "box(?:es)?",
    "tests/worker/features/images/*": "box(?:es)?",
    # A CSS class.
    "gateway/dashboard/static/*": "box",
    "tests/browser/*": "box",
    # Keys of measurements.
    "bench/*": "ours",
    "tests/bench/*": "ours",
}
_COMPILED = [(re.compile(rf"\b(?:{word.pattern})\b", re.IGNORECASE), word) for word in WORDS]


class Passage(NamedTuple):
    """A piece of prose, and the line on which it begins."""

    line: int
    text: str


def files(area: str) -> list[Path]:
    path = ROOT / area
    if path.is_file():
        return [path]
    return sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES and _is_checked(each))


def _is_checked(path: Path) -> bool:
    return not {"vendor", "node_modules", "__pycache__"} & set(path.parts)


def may_have_faults(text: str) -> bool:
    """A quick check of the whole text of a file, which may be wrong only if it is True."""
    # Join adjacent literals, and divide escapes and names into words.
    text = re.sub(r"\\[a-z]|_", " ", re.sub(r"""["']\s*\n\s*[a-z]*["']""", "", text))
    lower = text.lower()
    return any(
        pattern.search(text)
        for pattern, word in _COMPILED
        if any(stem in lower for stem in word.stems.split("|"))
    )


def passages(path: Path, text: str) -> Iterator[Passage]:
    if path.suffix == ".md":
        yield from _markdown(text)
    elif path.suffix == ".py":
        yield from _python(text, with_literals="tests" not in path.relative_to(ROOT).parts)
    else:
        yield from _comments(text, path.suffix)


def _markdown(text: str) -> Iterator[Passage]:
    """The whole text without code; of code blocks only the comments."""
    lines = []
    in_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
            lines.append("")
        else:
            lines.append(line.partition("# ")[2] if in_code else line)
    yield Passage(1, re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", " ", "\n".join(lines)))


def _python(text: str, *, with_literals: bool) -> Iterator[Passage]:
    """Comments, docstrings, names of tests and string literals, which are data in tests."""
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("#: ")
    for line in [line for line in comments if line - 1 not in comments]:  # joins adjacent lines
        block = [comments[line]]
        while line + len(block) in comments:
            block.append(comments[line + len(block)])
        yield Passage(line, _without_code("\n".join(block)))
    for node in ast.walk(ast.parse(text)):
        kept = node.value if isinstance(node, ast.Expr) else node if with_literals else None
        if isinstance(kept, ast.Constant) and isinstance(kept.value, str) and " " in kept.value:
            yield Passage(kept.lineno, _without_code(kept.value))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield Passage(node.lineno, node.name.replace("_", " "))


def _comments(text: str, suffix: str) -> Iterator[Passage]:
    pattern = {
        ".lua": r"(?:--[^\n]*(?:\n[ \t]*(?=--))?)+",
        ".js": r"//[^\n]*|/\*.*?\*/|\"[^\"\n]* [^\"\n]*\"|`[^`]* [^`]*`",
        ".mjs": r"//[^\n]*|/\*.*?\*/|\"[^\"\n]* [^\"\n]*\"",
        ".css": r"/\*.*?\*/",
    }.get(suffix, r"#[^\n]*|(?:Description|description|summary)[=:][^\n]*")
    for match in re.finditer(pattern, text, re.DOTALL):
        yield Passage(text.count("\n", 0, match.start()) + 1, _without_code(match[0].strip("`")))


def _without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", " ", text)


def faults(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    usual = [word for files, word in EXCEPTIONS.items() if fnmatch(name, files)]
    found: list[str] = []
    source = path.read_text()
    if ".*" in usual or (path.suffix == ".py" and not may_have_faults(source)):
        return found
    for first, passage in passages(path, source):
        text = USUAL.sub(lambda match: " " * len(match[0]), passage)
        for pattern, banned in _COMPILED:
            for match in pattern.finditer(text):
                if not any(re.fullmatch(word, match[0], re.IGNORECASE) for word in usual):
                    line = first + text.count("\n", 0, match.start())
                    found.append(f"{name}:{line}: {match[0]!r}; write: {banned.instead}")
    return found


@pytest.mark.parametrize("area", CLEAN)
def test_no_private_vocabulary(area: str) -> None:
    checked = files(area)
    assert checked
    assert [fault for path in checked for fault in faults(path)] == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Nobody renews it.", "Nobody"),
        ("the box is too hot", "box"),
        ("letters that were put aside", "letters"),
        ("A parameter is none.", "is none"),
        ("no places are free", "no places"),
        ("def test_who_waits(): pass", "who waits"),
        ('"The lease is "\n    "none."', "is none"),
        ('"first line\\nnobody"', "nobody"),
        ("the mourners", "mourners"),
    ],
)
def test_the_word_list_finds_old_words(text: str, word: str) -> None:
    assert any(pattern.search(word) for pattern, _ in _COMPILED)
    assert may_have_faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "dead letters are redriven",
        "a dead-letter stream",
        "a letter or digit",
        "updated in place",
        "the bounding box of a face",
        "the history of a job",
        "trailing data",
        "box-sizing: border-box",
    ],
)
def test_usual_words_are_allowed(text: str) -> None:
    plain = USUAL.sub(" ", text)
    assert not [word for pattern, word in _COMPILED if pattern.search(plain)]


#: Added by the first commit with a conventional subject.
FIRST_FILE = "ARCHITECTURE.md"
MAX_SUBJECT = 72


def git_log(*arguments: str) -> list[str]:
    command = ["git", "-C", str(ROOT), "log", *arguments]
    try:
        log = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if log.returncode:
        pytest.skip("there is no git history here")
    return log.stdout.splitlines()


def test_commit_subjects_are_short_and_imperative() -> None:
    """At most 72 characters; no article, gerund or past tense as the first word."""
    first = git_log("--diff-filter=A", "--format=%H", "--", FIRST_FILE)
    if not first:
        pytest.skip("the history does not go back far enough")
    subjects = git_log("--no-merges", "--format=%s", f"{first[-1]}..HEAD")
    wrong = [
        subject
        for subject in subjects
        if len(subject) > MAX_SUBJECT or re.match(r"(?:An?|The|\w+ing|\w+ed)\b", subject)
    ]
    assert wrong == []
