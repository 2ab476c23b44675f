"""The CSV of an export: no cell is a formula, and each delivery has a row."""

from typing import Any

import pytest

from relay.pages.export import csv_rows, safe_cell


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_formula_is_a_text(text: str) -> None:
    assert safe_cell(text) == "'" + text


@pytest.mark.parametrize("text", ["", "a=1", "1", " =1", "'=1"])
def test_other_cells_stay_as_they_are(text: str) -> None:
    assert safe_cell(text) == text


def test_a_message_without_a_delivery_has_a_row() -> None:
    item: Any = {
        "source_id": "shop", "message_id": "m,1", "webhook_id": "msg_1", "type": None, "status": "arrived",
        "received_at": "2026-01-31T12:00:00Z", "size": 1, "content_type": None, "preview": 'a "b"', "deliveries": [],
        "state": "queued",
    }  # fmt: skip
    [line] = csv_rows([item]).splitlines()
    assert line == '2026-01-31T12:00:00Z,shop,"m,1",msg_1,,1,,arrived,queued,,,,,,,,,,"a ""b"""'
