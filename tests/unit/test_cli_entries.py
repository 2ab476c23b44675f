"""The fields that commands for receivers and sources read from options and files."""

from pathlib import Path

import pytest

from relay.cli.entries import fields_of
from relay.config.strict_yaml import parse_mapping
from relay.domain.errors import UserError


def test_a_value_is_yaml_and_a_dot_leads_into_a_mapping() -> None:
    given = ("enabled=false", "retry.cap=2h", "retry.first=1s", "subscribe=[push]")
    assert fields_of(None, given) == {"enabled": False, "retry": {"cap": "2h", "first": "1s"}, "subscribe": ["push"]}


@pytest.mark.parametrize("value", ["off", "no", "on", "yes", "true", "12", "1.5", "~", "[a, off]", '"off"', ""])
def test_a_value_is_read_as_in_a_receivers_file(value: str) -> None:
    assert fields_of(None, (f"event_schemas={value}",)) == parse_mapping(f"event_schemas: {value}", "a file")


@pytest.mark.parametrize(
    "value", ["[" * 3000, ": :", "2024-99-99", "!!timestamp x", "!!int x", "9" * 5000, "!!binary abc", "\ud800"]
)
def test_a_value_that_is_no_yaml_is_named(value: str) -> None:
    with pytest.raises(UserError, match=r"^--set retry\.cap=\.\.\.: the value is not YAML"):
        fields_of(None, (f"retry.cap={value}",))


@pytest.mark.parametrize("value", ["&a [*a]", "{2024-01-01: 2}"])
def test_a_value_that_json_cannot_have_is_named(tmp_path: Path, value: str) -> None:
    file = tmp_path / "ci.yaml"
    file.write_text(f"headers: {value}")
    for document, given in ((None, (f"headers={value}",)), (str(file), ())):
        with pytest.raises(UserError, match=r"^headers: the value cannot be written as JSON"):
            fields_of(document, given)
