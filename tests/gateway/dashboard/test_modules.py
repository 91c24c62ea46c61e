"""JavaScript modules of the dashboard (formats, paths, sessions, JSON), run in Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from gateway.dashboard.static_files import STATIC
from tests.support.servers import missing

#: Evaluates an expression with the exports of a module, and prints the value as JSON.
_RUN = """
const names = await import(process.argv[1]);
const value = new Function(...Object.keys(names), `return (${process.argv[2]})`)(
  ...Object.values(names));
console.log(JSON.stringify(value ?? null));
"""


def run(module: str, expression: str) -> Any:
    node = shutil.which("node")
    if node is None:
        missing("Node.js is not installed")
        raise AssertionError
    command = [node, "--input-type=module", "-e", _RUN, (STATIC / module).as_uri(), expression]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_numbers_are_formatted() -> None:
    expected = {
        "duration(0)": "0 ms",
        "duration(0.4)": "0.4 ms",
        "duration(12.6)": "13 ms",
        "duration(1300)": "1.3 s",
        "duration(9960)": "10 s",
        "duration(59700)": "1 min",
        "duration(252000)": "4 min 12 s",
        "duration(7500000)": "2 h 5 min",
        "duration(180000000)": "2 d 2 h",
        "duration(null)": "–",
        "bytes(0)": "0 B",
        "bytes(999)": "999 B",
        "bytes(1023)": "1.0 KB",
        "bytes(63512576)": "61 MB",
        "bytes(-2048)": "-2.0 KB",
        "bytes(NaN)": "–",
        "count(12345)": "12,345",
        "count(0.256)": "0.26",
        "count(undefined)": "–",
        "plural(1, 'key')": "1 key",
        "plural(0, 'key')": "0 keys",
        "plural(1200, 'delivery', 'deliveries')": "1,200 deliveries",
        "ago(1000, 4500)": "3 s ago",
        "ago(10000, 5000)": "in 5 s",
        "ago(1000, 1200)": "now",
        "ago(0, 7200000)": "2 h ago",
        "shortId('6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e')": "6f1c0f0e",
        "shortId('wf_1')": "wf_1",
        "clock('no time')": "–",
        "clock(9e15)": "–",
    }
    assert run("lib/format.js", f"[{', '.join(expected)}]") == list(expected.values())


SHOWN = [
    ("12345678901234567890", "12345678901234567890"),
    ('{"b":1,"a":1.10,"b":2}', '{\n  "b": 1,\n  "a": 1.10,\n  "b": 2\n}'),
    ('{"__proto__":{"x":[]}}', '{\n  "__proto__": {\n    "x": []\n  }\n}'),
    ('"<img src=x onerror=alert(1)>"', '"<img src=x onerror=alert(1)>"'),
    ('["\\ud800", "\\u0000"]', '[\n  "\\ud800",\n  "\\u0000"\n]'),
    ("[1,]", "[1,]"),
    ("{a:1}", "{a:1}"),
    ('{"a":1}}', '{"a":1}}'),
    ("", ""),
    ("nul", "nul"),
    ("[" * 5000 + "]" * 5000, "[" * 5000 + "]" * 5000),
]


def test_json_is_not_altered() -> None:
    texts = json.dumps([text for text, _ in SHOWN])
    assert run("components/json_view.js", f"{texts}.map(pretty)") == [shown for _, shown in SHOWN]


def test_paths_and_queries_are_encoded() -> None:
    query = "{q: 'a&b', none: null, empty: '', status: ['x', 'y'], n: 0}"
    expression = f"[url`/v1/jobs/${{'a/b?c#d'}}/x`, queryString({query}), queryString({{}})]"
    expected = ["/v1/jobs/a%2Fb%3Fc%23d/x", "?q=a%26b&status=x&status=y&n=0", ""]
    assert run("lib/api.js", expression) == expected


def test_permissions_follow_the_session() -> None:
    record = '{"may": ["submit"], "reads": ["jobs"], "signed_in": true}'
    session, nobody = f"new Session({record})", "new Session(null)"
    calls = ("can('submit')", "can('admin')", "canRead('jobs')", "canRead('all')")
    expression = f"[{', '.join(f'{who}.{call}' for who in (session, nobody) for call in calls)}]"
    assert run("lib/session.js", expression) == [True, False, True, False, *[False] * 4]


def test_the_return_path_stays_on_the_dashboard() -> None:
    cases = {
        "/ui/jobs?x=1": "/ui/jobs?x=1",
        "/ui": "/ui",
        "//evil.example": "/ui",
        "/ui//evil.example": "/ui",
        "https://evil.example/ui": "/ui",
        "/v1/keys": "/ui",
        "/ui/login?back=/ui": "/ui",
        "/uix": "/ui",
    }
    source = f"{json.dumps(list(cases))}.map(returnPath)"
    assert run("lib/session.js", source) == list(cases.values())
