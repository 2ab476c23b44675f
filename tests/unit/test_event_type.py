"""Schemas of event types: rejected schemas, and that validation takes bounded time for any schema and payload."""

import json
import time
from typing import Any

import pytest

from relay.domain.control_key import decode_value, encode_value
from relay.domain.event_type import (
    STEPS,
    EventTypeEntry,
    EventVersion,
    PayloadFault,
    SchemaError,
    check_event_type,
    check_type_name,
    payload_fault,
)

BUILD = {
    "type": "object",
    "required": ["number"],
    "properties": {"number": {"type": "integer"}, "sha": {"type": "string", "pattern": "^[0-9a-f]{40}$"}},
}


def entry(*schemas: dict[str, Any], examples: tuple[object, ...] = ()) -> EventTypeEntry:
    versions = (EventVersion(number, schema, examples) for number, schema in enumerate(schemas, 1))
    return EventTypeEntry("", versions=tuple(versions))


def fault(value: object, *schemas: dict[str, Any]) -> PayloadFault | None:
    return payload_fault(entry(*schemas), json.dumps(value).encode())


def test_a_payload_is_valid_by_any_version_and_the_fault_is_that_of_the_newest() -> None:
    newer = BUILD | {"required": ["id"]}
    assert fault({"number": 4}, BUILD, newer) is None
    assert fault({"id": 4}, BUILD, newer) is None
    assert fault({}, BUILD, newer) == PayloadFault("", 'not valid by required: ["id"]')
    assert fault({"number": "4"}, BUILD) == PayloadFault("/number", "not valid by type: integer")
    assert fault({"number": 1, "sha": "x" * 40}, BUILD) == PayloadFault("/sha", "not valid by pattern: ^[0-9a-f]{40}$")
    assert payload_fault(entry(BUILD), b"{") == PayloadFault("", "not JSON")
    assert payload_fault(EventTypeEntry(), b"{") is None


@pytest.mark.parametrize(
    ("schema", "place", "detail"),
    [
        ({"type": "text"}, "/versions/0/schema/type", "not valid"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "/versions/0/schema/properties/a/pattern", "RE2"),
        ({"pattern": "(x{1000}){1000}"}, "/versions/0/schema/pattern", "RE2"),
        ({"$ref": "https://127.0.0.1/x.json"}, "/versions/0/schema/$ref", "leads nowhere"),
        ({"$ref": "file:///etc/passwd"}, "/versions/0/schema/$ref", "leads nowhere"),
        ({"items": {"$ref": "#/$defs/a"}}, "/versions/0/schema/items/$ref", "leads nowhere"),
        ({"patternProperties": {"^(a+)+$": {}}}, "/versions/0/schema/patternProperties", "not supported"),
    ],
)
def test_a_schema_that_cannot_be_applied_is_refused_with_its_place(
    schema: dict[str, Any], place: str, detail: str
) -> None:
    with pytest.raises(SchemaError, match=detail) as caught:
        check_event_type(entry(schema))
    assert caught.value.pointer == place


def test_an_example_that_is_not_valid_is_refused() -> None:
    with pytest.raises(SchemaError, match="not valid by the schema: /number") as caught:
        check_event_type(entry(BUILD, examples=({"number": 1}, {"number": "x"})))
    assert caught.value.pointer == "/versions/0/examples/1"


def test_versions_ascend_and_names_have_no_control_characters() -> None:
    with pytest.raises(SchemaError, match="ascending"):
        check_event_type(EventTypeEntry(versions=(EventVersion(2), EventVersion(1))))
    for name in ("", "a\n", "x" * 5_000):
        with pytest.raises(SchemaError):
            check_type_name(name)


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


_TWICE = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(30)}
_LIST = {"items": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}


def _deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#"}, 1),
        ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1),
        ({"$defs": {**_TWICE, "d30": {}}, "$ref": "#/$defs/d0"}, 1),
        (_LIST, _deep(60)),
        ({"uniqueItems": True}, [{"a": n} for n in range(20_000)]),
        ({"items": {"enum": list(range(5_000))}}, [-1.5] * 5_000),
        ({"items": {"type": "integer"}}, [1] * (STEPS + 1)),
    ],
)
def test_a_schema_that_does_not_end_soon_is_a_fault(schema: dict[str, Any], value: object) -> None:
    check_event_type(entry(schema))
    found = fault(value, schema)
    assert found is not None
    assert found.detail == "too large to be checked with this schema" or found.detail.startswith("not valid by enum: ")


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"multipleOf": 0.01}, b"1" + 400 * b"0"),
        ({"multipleOf": 0.01}, b"1e400"),
        ({"multipleOf": 0.01}, b"NaN"),
        ({"pattern": "^a"}, b'"\\ud800"'),
        ({"type": "string"}, b"1" * 5_000),
    ],
)
def test_a_value_that_cannot_be_checked_is_a_fault(schema: dict[str, Any], payload: bytes) -> None:
    assert payload_fault(entry(schema), payload) is not None


def test_a_schema_nested_too_deeply_is_refused() -> None:
    with pytest.raises(SchemaError, match="nested"):
        check_event_type(entry(_nested(100)))


def test_a_pattern_takes_linear_time() -> None:
    """With backtracking it would take longer than the age of the universe."""
    assert fault("a" * 50_000 + "b", {"pattern": "^(a+)+$"}) is not None


def test_patterns_are_matched_within_a_bound() -> None:
    slow = [{"pattern": f"[ab]*a[ab]{{900}}{end}"} for end in "klmnopqrstuvwxyz"]
    check_event_type(entry({"anyOf": slow}))
    begun = time.process_time()
    found = fault("ab" * 100_000, {"anyOf": slow})
    assert time.process_time() - begun < 1
    assert found == PayloadFault("", "too large to be checked with this schema")


def test_a_schema_with_too_many_patterns_is_refused() -> None:
    many = [{"pattern": f"a{number}"} for number in range(2_000)]
    with pytest.raises(SchemaError, match="its patterns take too long") as caught:
        check_event_type(entry({"anyOf": many}))
    assert caught.value.pointer == "/versions/0/schema"


def test_an_entry_is_read_as_it_was_written() -> None:
    known = EventTypeEntry("A build.", True, (EventVersion(1, BUILD, ({"number": 1},)),))
    assert decode_value(EventTypeEntry, encode_value(known)) == known
