"""PDFs are sent as text to backends without file input."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from app.backends.demo import DemoBackend
from app.core.profile import Profile
from app.core.request.model_request import ModelRequest
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from app.responses import Caller, Responses
from app.responses.context.documents import PdfTexts
from app.responses.delivery import NO_DELIVERY
from app.responses.inspection import Inspection
from app.stores.memory import MemoryStore
from tests.support.build import responses_on


def pdf(*pages: str) -> bytes:
    """Write a PDF with a line per page."""
    count = len(pages)
    kids = " ".join(f"{3 + 2 * n} 0 R" for n in range(count))
    font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {count} >>"]
    for n, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {4 + 2 * n} 0 R /Resources {font} >>"
        objects += [page, f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"]
    body, offsets = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return body + f"{end}startxref\n{len(body)}\n%%EOF\n".encode()


def part(content: bytes, name: str = "report.pdf") -> dict[str, Any]:
    data = f"data:application/pdf;base64,{base64.b64encode(content).decode()}"
    return {"type": "input_file", "filename": name, "file_data": data}


class Listening(DemoBackend):
    """A backend with or without file input, which records its requests."""

    def __init__(self, files: str = "error") -> None:
        super().__init__()
        self.files = files
        self.received: list[list[Any]] = []

    def profile(self, model: str) -> Profile:
        return super().profile(model).override({"request.content.files": self.files})

    def open(self, model_request: ModelRequest) -> Any:
        self.received.append(self.encode(model_request).body["messages"])
        return super().open(model_request)


def responses_of(backend: Listening) -> Responses:
    return responses_on(backend, MemoryStore(ttl=60, max_bytes=1_000_000))


async def answer(responses: Responses, **fields: Any) -> str:
    """Return the response's id."""
    run = await responses.create(CreateResponse.model_validate({"model": "demo", **fields}), Caller())
    await run.generate(NO_DELIVERY)
    return str(run.response["id"])


async def test_pdf_text_is_sent_with_its_name_in_this_turn_and_the_next() -> None:
    backend = Listening()
    responses = responses_of(backend)
    content = [{"type": "input_text", "text": "Sum it up."}, part(pdf("Profit rose.", "Costs fell."))]
    first = await answer(responses, input=[{"role": "user", "content": content}])
    text = 'Sum it up.\n<file name="report.pdf">\nProfit rose.\n\nCosts fell.\n</file>'
    assert backend.received == [[{"role": "user", "content": text}]]
    (kept,) = await responses.stored.input_items(first, Caller())
    assert kept["content"] == content  # as it came
    await answer(responses, input="Shorter.", previous_response_id=first)
    assert backend.received[1][0]["content"] == text


async def test_pdf_tokens_are_those_of_its_text() -> None:
    request = CreateResponse.model_validate(
        {"model": "m", "input": [{"role": "user", "content": [part(pdf("Fine."))]}]}
    )
    count, _ = await Inspection(responses_of(Listening())).count_tokens(request, Caller())
    assert 0 < count < 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pdf(""), "The PDF contains no text: its pages can be images."),
        (b"%PDF-1.4\nnothing of the kind", "The PDF cannot be read"),
    ],
)
async def test_pdf_that_cannot_be_read_is_refused_with_its_field(content: bytes, message: str) -> None:
    responses = responses_of(Listening())
    with pytest.raises(InvalidRequest) as caught:
        await answer(responses, input=[{"role": "user", "content": [part(pdf("Fine.")), part(content)]}])
    assert caught.value.message.startswith(message)
    assert caught.value.param == "input[0].content[1].file_data"


async def test_pdf_that_takes_too_long_is_refused() -> None:
    assert await PdfTexts(timeout=0).read(part(pdf("Fine.")), "ada") == {"error": "The PDF takes too long to read."}


async def test_pdf_for_a_backend_with_files_is_sent_itself() -> None:
    backend = Listening("pass")
    await answer(responses_of(backend), input=[{"role": "user", "content": [part(pdf("Fine."))]}])
    (sent,) = backend.received[0][0]["content"]
    assert sent["type"] == "file" and sent["file"]["filename"] == "report.pdf"
