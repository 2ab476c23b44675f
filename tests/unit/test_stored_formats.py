"""Stored formats change only with their version: those that this release writes, and those of former releases that it
reads.

tests/fixtures/formats.json has a sample of each format and version. A format changes with its version, and then gets
another entry there; earlier entries stay as long as they have to be read (docs/upgrading.md).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.stored_samples import FORMATS, from_text, written

GOLDEN: dict[str, dict[str, list[Any]]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "formats.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_what_its_version_says(name: str) -> None:
    assert GOLDEN[name][str(FORMATS[name].version)] == written(name)


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.read is not None])
def test_what_was_written_in_any_version_is_read(name: str) -> None:
    known = FORMATS[name]
    assert known.read is not None
    for stored in GOLDEN[name].values():
        assert [known.read(from_text(each)) for each in stored] == list(known.samples[: len(stored)])


def test_no_form_has_been_forgotten() -> None:
    assert GOLDEN.keys() == FORMATS.keys()
