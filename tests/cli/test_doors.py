"""Documents, images and workflows, on a real gateway and a real worker."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from client.exits import Exit
from tests.cli.rig import House, run

pytestmark = pytest.mark.process
TEXT = (
    "Failed jobs go to the dead letter queue (DLQ). The DLQ keeps them. Every dead letter queue "
    "has an owner. The DLQ is read each morning.\n"
)


def told(house: House, *words: str) -> Any:
    ran = house.run(*words, "-o", "json")
    assert ran.code == 0, ran
    return json.loads(ran.out)


def test_documents(house: House, tmp_path: Path) -> None:
    file = tmp_path / "hours.md"
    file.write_text("# Hours\n\nThe shop is closed on sundays.\n")
    added = told(house, "rag", "add", str(file))
    assert [each["document_id"] for each in added] == ["hours.md"]
    stdin = run("rag", "add", "-", "--id", "x", stdin=b"open on mondays", SLUICE_URL=house.url)
    assert stdin.code == 0
    found = told(house, "rag", "search", "closed sundays")
    assert found["hits"][0]["document_id"] == "hours.md"
    shown = house.run("rag", "search", "closed sundays")
    assert "closed on sundays" in shown.out
    assert {each["id"] for each in told(house, "rag", "ls")} == {"hours.md", "x"}
    assert "default" in house.run("rag", "namespaces").out
    assert house.run("rag", "rm", "hours.md", "x").code == 0
    assert told(house, "rag", "ls") == []
    assert house.run("rag", "add", str(tmp_path / "none")).code == Exit.UNWRITTEN


def test_images(house: House, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new("RGB", (40, 30), "red").save(buffer, "PNG")
    (tmp_path / "red.png").write_bytes(buffer.getvalue())
    [done] = told(house, "image", "upload", str(tmp_path / "red.png"), "--wait")
    assert done["status"] == "processed", done
    image_id = done["image_id"]
    [piped] = house.run("image", "upload", str(tmp_path / "red.png")).out.split()
    assert house.run("image", "watch", piped).code == 0
    target = tmp_path / "small.webp"
    assert house.run("image", "get", image_id, "--to", str(target)).code == 0
    assert target.read_bytes()[8:12] == b"WEBP"
    assert {image_id, piped} <= {each["image_id"] for each in told(house, "image", "ls")}
    assert "red.png" in house.run("image", "show", image_id).out
    assert house.run("image", "rm", image_id, piped).code == 0
    assert house.run("image", "show", image_id).code == Exit.MISSING


def test_a_broken_image_is_1(house: House, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "no.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"x" * 100)
    ran = house.run("image", "upload", str(tmp_path / "no.png"), "--wait")
    assert ran.code == Exit.FAILED
    assert "failed" in ran.out


def test_a_workflow_from_start_to_undo(house: House, tmp_path: Path) -> None:
    (tmp_path / "queues.txt").write_text(TEXT)
    started = house.run("workflow", "start", "--source", str(tmp_path / "queues.txt"))
    assert started.code == 0, started
    [job_id] = started.out.split()
    watched = house.run("workflow", "watch", job_id, "--until-input")
    assert watched.code == Exit.WAITING, watched
    assert told(house, "workflow", "show", job_id)["status"] == "waiting_input"
    assert job_id in {each["job_id"] for each in told(house, "workflow", "ls")}
    proposed = told(house, "workflow", "results", job_id, "--status", "proposed")
    assert proposed
    assert proposed[0]["id"] in house.run("workflow", "results", job_id).out

    assert house.run("workflow", "approve", job_id).code == Exit.USAGE
    assert house.run("workflow", "approve", job_id, "--all").code == Exit.USAGE  # nobody to ask
    decided = house.run("workflow", "approve", job_id, "--min-confidence", "0", "-y")
    assert decided.code == 0, decided
    assert house.run("workflow", "watch", job_id).code == 0
    undone = house.run("workflow", "undo", job_id)
    assert undone.code == 0, undone
    assert undone.out.startswith("taken back: undo_")
    late = house.run("workflow", "reject", job_id, "--all", "-y")
    assert late.code == Exit.FAILED
    assert "409" in late.err


def test_a_workflow_of_a_file_and_its_cancel(house: House, tmp_path: Path) -> None:
    request = {"auto_advance": False, "sources": [{"type": "text", "title": "t", "text": TEXT}]}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    first = told(house, "workflow", "start", "-f", str(file), "--key", "one")
    again = told(house, "workflow", "start", "-f", str(file), "--key", "one")
    assert first["job_id"] == again["job_id"]
    canceled = told(house, "workflow", "cancel", first["job_id"], "--reason", "enough")
    assert canceled["status"] == "cancelled"
    assert house.run("workflow", "watch", first["job_id"]).code == Exit.CANCELED
