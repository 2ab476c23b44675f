"""What others wrote is shown as text or saved, and is never a page of this origin."""

import re
from pathlib import Path

import pytest

import relay.api
from relay.api.responses import foreign_response

OURS = {"responses.py", "page.py", "pages.py", "problem_details.py", "health.py", "app.py", "inbound.py"}
"""Modules that make responses of what the relay itself writes. `resource.py` of the tail sends JSON as events."""


@pytest.mark.parametrize("content_type", ["application/json", "text/plain; charset=utf-8", "Text/Plain"])
def test_text_is_shown_in_a_sandbox(content_type: str) -> None:
    response = foreign_response(b"x", content_type, {})
    assert "Content-Disposition" not in response.headers
    assert response.headers["Content-Security-Policy"].startswith("sandbox")


@pytest.mark.parametrize("content_type", ["text/html", "image/svg+xml", "text/html,application/json", "x", "", None])
def test_all_else_is_saved(content_type: str | None) -> None:
    headers = foreign_response(b"<script>", content_type, {"Content-Security-Policy": "none"}).headers
    assert headers["Content-Disposition"] == "attachment"
    assert headers["Content-Security-Policy"].startswith("sandbox")


def test_no_other_module_of_the_api_makes_a_response_of_bytes() -> None:
    makes = re.compile(r"web\.(Stream)?Response\(")
    folder = Path(relay.api.__path__[0])
    found = {file for file in folder.rglob("*.py") if makes.search(file.read_text())}
    assert {file.name for file in found} - OURS == {"resource.py", "receiver_export.py"}
    assert [file.parent.name for file in found if file.name == "resource.py"] == ["tail"]
