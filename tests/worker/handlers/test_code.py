"""The task `code`: programs extracted from a model's answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.worker.handlers.model_kit import Hang, StageMaker, joined, stage_maker
from tests.worker.kit import RigMaker
from worker.features.model.output_parsing import FencedBlock, fenced_blocks
from worker.handlers import code
from worker.handlers.code import canonical_language, find_code, looks_like_code

PROGRAM = "def add(a, b):\n    return a + b"


@pytest.fixture
async def stage(fake_rig: RigMaker) -> AsyncIterator[StageMaker]:
    async for make in stage_maker(fake_rig, "code", code.add_handler):
        yield make


def fenced(program: str, language: str = "python") -> str:
    return f"Sure!\n```{language}\n{program}\n```\nHave fun."


async def test_a_program_is_taken_out_of_its_fence(stage: StageMaker) -> None:
    on = stage(fenced(PROGRAM))
    result, story = await on.run(prompt="add two numbers", language="Python", check=True)
    assert (result["code"], result["language"]) == (PROGRAM, "python")
    assert result["syntax_ok"] is True
    assert result["text"] == fenced(PROGRAM) == joined(story, "worker.code")
    assert result["usage"]["prompt_tokens"] == 7
    [request] = on.model.requests
    assert "```python" in request.messages[0]["content"]
    assert request.messages[1] == {"role": "user", "content": "add two numbers"}
    assert request.temperature == 0.2


async def test_nothing_is_checked_unless_asked(stage: StageMaker) -> None:
    result, _ = await stage(fenced("def (")).run(prompt="a")
    assert not [name for name in result if name.startswith("syntax")]


async def test_syntax_errors_are_reported(stage: StageMaker) -> None:
    result, _ = await stage(fenced("x = 1\ndef f(:\n  pass", "py")).run(prompt="a", check=True)
    assert (result["language"], result["syntax_ok"]) == ("python", False)
    assert result["syntax_error"].startswith("line 2: ")


async def test_a_program_is_never_run(stage: StageMaker, tmp_path: Any) -> None:
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\nimport os\nos._exit(3)"
    result, _ = await stage(fenced(source)).run(prompt="a", check=True)
    assert result["syntax_ok"] is True
    assert not mark.exists()


@pytest.mark.parametrize("source", ["-" * 50_000 + "1", "(" * 50_000, "a" + ".b" * 50_000, "a\0"])
async def test_a_program_that_crashes_the_parser_is_invalid(stage: StageMaker, source: str) -> None:
    result, _ = await stage(fenced(source)).run(prompt="a", check=True)
    assert result["syntax_ok"] is False
    assert result["syntax_error"]


@pytest.mark.parametrize(("source", "fine"), [('{"a": [1, 2]}', True), ("{'a': 1}", False)])
async def test_json_is_checked_too(stage: StageMaker, source: str, fine: bool) -> None:
    result, _ = await stage(fenced(source, "json")).run(prompt="a", check=True)
    assert result["syntax_ok"] is fine


async def test_other_languages_are_not_checked(stage: StageMaker) -> None:
    result, _ = await stage(fenced("fn main() {}", "rs")).run(prompt="a", check=True)
    assert result["language"] == "rust"
    assert "syntax_ok" not in result
    assert result["syntax_note"] == "not checked: only python and json are supported, this is rust"
    result, _ = await stage(fenced("fn main() {}", "")).run(prompt="a", check=True)
    assert result["language"] is None
    assert "unknown language" in result["syntax_note"]


async def test_an_answer_without_code_is_requested_again(stage: StageMaker) -> None:
    on = stage("I would use a loop for that.", fenced(PROGRAM))
    result, story = await on.run(prompt="a")
    assert result["code"] == PROGRAM
    assert "contains no code" in on.model.last_message(1)
    assert joined(story, "worker.code") == result["text"]
    on = stage("I would use a loop for that.", "Really, a loop.")
    error = await on.fail(prompt="a")
    assert error["kind"] == "model_answer_invalid"


async def test_canceled_in_the_middle(stage: StageMaker) -> None:
    kept = await stage(Hang("```python\ndef add(a,")).cancel_in_the_middle(prompt="a", check=True)
    assert (kept["finish_reason"], kept["code"]) == ("canceled", "def add(a,")
    assert "syntax_ok" not in kept


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "language": "x\ny"}, "language"),
        ({"prompt": "a", "check": "yes"}, "check"),
        ({"prompt": "a", "run": True}, "run: Extra"),
    ],
)
async def test_errors_of_a_payload_are_named(
    stage: StageMaker, payload: dict[str, Any], named: str
) -> None:
    error = await stage().fail(**payload)
    assert error["kind"] == "invalid_payload"
    assert named in error["message"]


# -- finding programs -----------------------------------------------------------------------------


def test_fenced_blocks_are_found() -> None:
    text = "a\n```py title=x\none\n```\n~~~\ntwo\n```\n~~~~\n````md\n```\ninner\n```\n````\n```\n"
    assert fenced_blocks(text) == [
        FencedBlock("py", "one"),
        FencedBlock("", "two\n```"),
        FencedBlock("md", "```\ninner\n```"),
    ]
    assert fenced_blocks("```c\r\nint a;\r\n```\r\n") == [FencedBlock("c", "int a;\r")]
    assert fenced_blocks("use `a` or ``b`` or ```c``` inline") == []
    assert fenced_blocks("```python\ncut of") == [FencedBlock("python", "cut of")]


def test_the_longest_block_of_the_language_is_used() -> None:
    install = "```bash\npip install everything-there-is\n```\n"
    text = f"{install}```py\na = 1\n```\n```python\nlonger = 22\n```"
    assert find_code(text, "python") == ("longer = 22", "python")
    assert find_code(text) == ("pip install everything-there-is", "bash")
    assert find_code(text, "rust") == ("pip install everything-there-is", "bash")
    assert find_code("```\na\n```", "go") == ("a", "go")
    assert (
        canonical_language(" C++ "),
        canonical_language(".py"),
        canonical_language("COBOL"),
    ) == ("cpp", "python", "cobol")


@pytest.mark.parametrize(
    "text",
    [
        PROGRAM,
        "import os\nprint(os.getcwd())",
        "const a = 1;\nconsole.log(a);",
        "#include <stdio.h>\nint main(void) {\n  return 0;\n}",
        "SELECT name FROM people WHERE age > 7;",
        '{\n  "a": 1,\n  "b": [1, 2]\n}',
        "<html>\n<body>\n</body>\n</html>",
        "<think>Let me see. I could use a loop here.</think>\nfor i in range(3):\n    print(i)",
    ],
)
def test_code_without_a_fence_is_code(text: str) -> None:
    assert find_code(text, "x") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n \n",
        "I would use a loop for that.",
        "First, import the module. Then call the function.\nThat is all.",
        "From here on it is easy. If you like, try it.\nElse, ask me.",
        "Yes.",
    ],
)
def test_prose_is_not_code(text: str) -> None:
    assert not looks_like_code(text)
    assert find_code(text) is None


def test_long_lines_are_no_trouble() -> None:
    assert isinstance(looks_like_code("a" * 1_000_000 + "(" * 1000), bool)
    assert isinstance(looks_like_code(("[" * 400 + "\n") * 5000), bool)
