"""The CSV of an export: no cell is a formula, and each delivery has a row."""

import json
from typing import Any

import pytest

from relay.pages.messages import csv_rows, ndjson_rows, safe_cell
from relay.schema.messages import WaitView


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


def test_a_line_has_what_a_delivery_waits_for() -> None:
    wait: Any = WaitView(kind="paused", since=None, until=None, detail="by hand")
    item: Any = {"message_id": "m-é", "deliveries": [{"receiver": "ci", "waiting_for": wait}]}
    [line] = ndjson_rows([item]).splitlines()
    found = json.loads(line)
    assert (found["message_id"], found["deliveries"][0]["waiting_for"]["kind"]) == ("m-é", "paused")
