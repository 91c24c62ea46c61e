"""The commands rag, image and workflow on a real gateway and worker."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from sluice.errors import ExitCode
from tests.support.client.site import Site

pytestmark = pytest.mark.process
TEXT = (
    "Failed jobs go to the dead letter queue (DLQ). The DLQ keeps them. Every dead letter queue "
    "has an owner. The DLQ is read each morning.\n"
)


def test_rag_commands(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "hours.md"
    file.write_text("# Hours\n\nThe shop is closed on sundays.\n")
    added = site.run_json("rag", "add", str(file))
    assert [each["document_id"] for each in added] == ["hours.md"]
    stdin = site.run("rag", "add", "-", "--id", "x", stdin=b"open on mondays")
    assert stdin.code == 0
    found = site.run_json("rag", "search", "closed sundays")
    assert found["hits"][0]["document_id"] == "hours.md"
    shown = site.run("rag", "search", "closed sundays")
    assert "closed on sundays" in shown.out
    assert {each["id"] for each in site.run_json("rag", "ls")} == {"hours.md", "x"}
    assert "default" in site.run("rag", "namespaces").out
    assert site.run("rag", "rm", "hours.md", "x").code == 0
    assert site.run_json("rag", "ls") == []
    assert site.run("rag", "add", str(tmp_path / "none")).code == ExitCode.IO_ERROR


@pytest.mark.slow("processes two images")
def test_image_commands(site: Site, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new("RGB", (40, 30), "red").save(buffer, "PNG")
    (tmp_path / "red.png").write_bytes(buffer.getvalue())
    [done] = site.run_json("image", "upload", str(tmp_path / "red.png"), "--wait")
    assert done["status"] == "processed", done
    image_id = done["image_id"]
    [piped] = site.run("image", "upload", str(tmp_path / "red.png")).out.split()
    assert site.run("image", "watch", piped).code == 0
    target = tmp_path / "small.webp"
    assert site.run("image", "get", image_id, "--to", str(target)).code == 0
    assert target.read_bytes()[8:12] == b"WEBP"
    assert {image_id, piped} <= {each["image_id"] for each in site.run_json("image", "ls")}
    assert "red.png" in site.run("image", "show", image_id).out
    assert site.run("image", "rm", image_id, piped).code == 0
    assert site.run("image", "show", image_id).code == ExitCode.NOT_FOUND


@pytest.mark.slow("processes an image")
def test_broken_image_exits_1(site: Site, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "no.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100)
    ran = site.run("image", "upload", str(tmp_path / "no.png"), "--wait")
    assert ran.code == ExitCode.FAILED
    assert "failed" in ran.out


def test_workflow_from_start_to_undo(site: Site, tmp_path: Path) -> None:
    (tmp_path / "queues.txt").write_text(TEXT)
    started = site.run("workflow", "start", "--source", str(tmp_path / "queues.txt"))
    assert started.code == 0, started
    [job_id] = started.out.split()
    watched = site.run("workflow", "watch", job_id, "--until-input")
    assert watched.code == ExitCode.INPUT_REQUIRED, watched
    assert site.run_json("workflow", "show", job_id)["status"] == "waiting_input"
    assert job_id in {each["job_id"] for each in site.run_json("workflow", "ls")}
    proposed = site.run_json("workflow", "results", job_id, "--status", "proposed")
    assert proposed
    assert proposed[0]["id"] in site.run("workflow", "results", job_id).out

    assert site.run("workflow", "approve", job_id).code == ExitCode.USAGE
    assert (
        site.run("workflow", "approve", job_id, "--all").code == ExitCode.USAGE
    )  # no terminal to ask on
    decided = site.run("workflow", "approve", job_id, "--min-confidence", "0", "-y")
    assert decided.code == 0, decided
    assert site.run("workflow", "watch", job_id).code == 0
    undone = site.run("workflow", "undo", job_id)
    assert undone.code == 0, undone
    assert undone.out.startswith("undone: undo_")
    late = site.run("workflow", "reject", job_id, "--all", "-y")
    assert late.code == ExitCode.FAILED
    assert "409" in late.err


@pytest.mark.slow("runs a workflow")
def test_workflow_from_a_file_and_cancel(site: Site, tmp_path: Path) -> None:
    request = {"auto_advance": False, "sources": [{"type": "text", "title": "t", "text": TEXT}]}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    first = site.run_json("workflow", "start", "-f", str(file), "--key", "one")
    again = site.run_json("workflow", "start", "-f", str(file), "--key", "one")
    assert first["job_id"] == again["job_id"]
    canceled = site.run_json("workflow", "cancel", first["job_id"], "--reason", "enough")
    assert canceled["status"] == "cancelled"
    assert site.run("workflow", "watch", first["job_id"]).code == ExitCode.CANCELED
