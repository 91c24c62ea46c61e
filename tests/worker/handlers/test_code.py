"""The task `code`: programs extracted from a model's answer."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.worker.features.model.output_parsing import FencedBlock, fenced_blocks
from sluice.worker.handlers.code import canonical_language, find_code, looks_like_code
from tests.support.worker.model_tasks import Hang, MakeScripted, joined

pytestmark = pytest.mark.fakeredis_only

TASK = "code"
PROGRAM = "def add(a, b):\n    return a + b"


def fenced(program: str, language: str = "python") -> str:
    return f"Sure!\n```{language}\n{program}\n```\nHave fun."


async def test_a_program_is_taken_out_of_its_fence(scripted: MakeScripted) -> None:
    worker = scripted(fenced(PROGRAM))
    result, events = await worker.run(prompt="add two numbers", language="Python", check=True)
    assert (result["code"], result["language"]) == (PROGRAM, "python")
    assert result["syntax_ok"] is True
    assert result["text"] == fenced(PROGRAM) == joined(events, "worker.code")
    assert result["usage"]["prompt_tokens"] == 7
    [request] = worker.model.requests
    assert "```python" in request.messages[0]["content"]
    assert request.messages[1] == {"role": "user", "content": "add two numbers"}
    assert request.temperature == 0.2


async def test_the_syntax_is_checked(scripted: MakeScripted) -> None:
    """Also of programs that crash the parser."""
    for source, language, found, syntax_ok, error in (
        ("x = 1\ndef f(:\n  pass", "py", "python", False, "line 2: "),
        ('{"a": [1, 2]}', "json", "json", True, None),
        ("{'a': 1}", "json", "json", False, ""),
        ("-" * 50_000 + "1", "python", "python", False, ""),
        ("(" * 50_000, "python", "python", False, ""),
        ("a" + ".b" * 50_000, "python", "python", False, ""),
        ("a\0", "python", "python", False, ""),
    ):
        result, _ = await scripted(fenced(source, language)).run(prompt="a", check=True)
        assert (result["language"], result["syntax_ok"]) == (found, syntax_ok), source[:20]
        if error is not None:
            assert result["syntax_error"]
            assert result["syntax_error"].startswith(error)


async def test_other_languages_are_not_checked(scripted: MakeScripted) -> None:
    result, _ = await scripted(fenced("def (")).run(prompt="a")  # not asked for
    assert not [name for name in result if name.startswith("syntax")]
    for language, found, note in (
        ("rs", "rust", "not checked: only python and json are supported, this is rust"),
        ("", None, "unknown language"),
    ):
        answer = fenced("fn main() {}", language)
        result, _ = await scripted(answer).run(prompt="a", check=True)
        assert result["language"] == found
        assert "syntax_ok" not in result
        assert note in result["syntax_note"]


async def test_a_program_is_never_run(scripted: MakeScripted, tmp_path: Any) -> None:
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\nimport os\nos._exit(3)"
    result, _ = await scripted(fenced(source)).run(prompt="a", check=True)
    assert result["syntax_ok"] is True
    assert not mark.exists()


async def test_an_answer_without_code_is_requested_again(scripted: MakeScripted) -> None:
    worker = scripted("I would use a loop for that.", fenced(PROGRAM))
    result, events = await worker.run(prompt="a")
    assert result["code"] == PROGRAM
    assert "contains no code" in worker.model.last_message(1)
    assert joined(events, "worker.code") == result["text"]
    worker = scripted("I would use a loop for that.", "Really, a loop.")
    error = await worker.fail(prompt="a")
    assert error["kind"] == "model_answer_invalid"


async def test_canceled_in_the_middle(scripted: MakeScripted) -> None:
    worker = scripted(Hang("```python\ndef add(a,"))
    kept = await worker.cancel_in_the_middle(prompt="a", check=True)
    assert (kept["finish_reason"], kept["code"]) == ("canceled", "def add(a,")
    assert "syntax_ok" not in kept


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
    names = [canonical_language(name) for name in (" C++ ", ".py", "COBOL")]
    assert names == ["cpp", "python", "cobol"]


@pytest.mark.parametrize(
    "text",
    [PROGRAM, "import os\nprint(os.getcwd())", "const a = 1;\nconsole.log(a);",
     "#include <stdio.h>\nint main(void) {\n  return 0;\n}",
     "SELECT name FROM people WHERE age > 7;", '{\n  "a": 1,\n  "b": [1, 2]\n}',
     "<html>\n<body>\n</body>\n</html>",
     "<think>Let me see. Use a loop.</think>\nfor i in range(3):\n    print(i)"],
)  # fmt: skip
def test_code_needs_no_fence(text: str) -> None:
    assert find_code(text, "x") is not None


@pytest.mark.parametrize(
    "text",
    ["", "\n \n", "I would use a loop for that.", "Yes.",
     "First, import the module. Then call the function.\nThat is all.",
     "From here on it is easy. If you like, try it.\nElse, ask me."],
)  # fmt: skip
def test_prose_is_no_code(text: str) -> None:
    assert find_code(text, "x") is None
    assert not looks_like_code(text)


def test_long_lines_are_no_trouble() -> None:
    assert isinstance(looks_like_code("a" * 1_000_000 + "(" * 1000), bool)
    assert isinstance(looks_like_code(("[" * 400 + "\n") * 5000), bool)
