"""PDF files for tests, valid and malicious, written by hand."""

from __future__ import annotations

import io
import zlib

import pypdf


def pdf(*pages: str, title: str = "", compress: bool = False) -> bytes:
    """A file with one line of text per page."""
    streams = [f"BT /F1 12 Tf 72 720 Td ({page}) Tj ET".encode("latin-1") for page in pages]
    if compress:
        streams = list(map(zlib.compress, streams))
    return assemble(streams, title=title, compressed=compress)


def bomb(megabytes: int) -> bytes:
    """A small file whose only page unpacks to many megabytes, made without as much memory."""
    packer = zlib.compressobj(1)
    packed = packer.compress(b"BT /F1 12 Tf (x) Tj ET ")
    packed += b"".join(packer.compress(b" " * (1 << 20)) for _ in range(megabytes))
    return assemble([packed + packer.flush()], compressed=True)


def encrypted(text: str, password: str) -> bytes:
    """A file that needs a password."""
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf(text)))
    writer.encrypt(password, algorithm="RC4-128")
    output = io.BytesIO()
    writer.write(output)
    return output.getvalue()


def assemble(streams: list[bytes], *, title: str = "", compressed: bool = False) -> bytes:
    """Objects, cross-reference table and trailer around the contents of the pages."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b""]
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    objects.append(b"<< /Title (" + title.encode("latin-1") + b") >>")
    kids = []
    how = b"/Filter /FlateDecode " if compressed else b""
    for stream in streams:
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R"
            + f" >> >> /Contents {len(objects) + 2} 0 R >>".encode()
        )
        objects.append(
            b"<< " + how + f"/Length {len(stream)} >>\nstream\n".encode() + stream + b"\nendstream"
        )
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    body, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(body))
        body += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    count = len(objects) + 1
    return (
        body
        + (
            f"xref\n0 {count}\n0000000000 65535 f \n{table}"
            f"trailer\n<< /Size {count} /Root 1 0 R /Info 4 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
        ).encode()
    )
