"""Event types of the catalogue: their schemas, checked when they are declared, and applied to payloads within a limit.

A schema that recurses without end, or compares each item of a list with each other, would hold the event loop: each
keyword that is applied counts as steps, and the check ends at STEPS. Patterns are matched by RE2, in linear time.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from relay.domain.json_pointer import pointer_of
from relay.domain.message import MAX_TEXT_BYTES
from relay.domain.pattern import TooManySteps, compiled_pattern, is_found, step_budget

MOST_TYPES: Final = 1_000
"""Maximum number of types in the catalogue, which each process keeps in memory."""
TypeName = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_BYTES)]


class EventVersion(Struct, frozen=True, forbid_unknown_fields=True):
    """`schema`: JSON Schema (2020-12) of the payload. `examples`: payloads, each valid by it."""

    version: Annotated[int, Meta(ge=1, le=9_999)]
    schema: dict[str, Any] = {}
    examples: Annotated[tuple[Any, ...], Meta(max_length=20)] = ()


class EventTypeEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """An event type as it is declared. `deprecated`: still sent, but no longer to be subscribed to. `versions`: in
    ascending order; a payload is valid if it is valid by any of them."""

    description: Annotated[str, Meta(max_length=4_000)] = ""
    deprecated: bool = False
    versions: Annotated[tuple[EventVersion, ...], Meta(max_length=20)] = ()


# --- schemas ------------------------------------------------------------------------------------------------------

STEPS: Final = 5_000
"""Keywords that are applied to a payload, at most, by all versions together: some 50 ms."""
MOST_DEPTH: Final = 64
"""Levels of a schema."""
_MOST_SHOWN: Final = 120
_UNBOUNDED: Final = frozenset({"patternProperties", "$dynamicRef", "unevaluatedProperties", "unevaluatedItems"})
"""Keywords that the library applies with patterns of its own, or at a cost that no step counts."""

_left: ContextVar[int] = ContextVar("steps_left")


class SchemaError(ValueError):
    """A schema or example that the catalogue does not take. `pointer`: to its place in the entry."""

    def __init__(self, detail: str, pointer: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer


class PayloadFault(NamedTuple):
    """Why a payload is not valid. `pointer`: to the place in it, empty for the whole."""

    pointer: str
    detail: str

    def __str__(self) -> str:
        return f"{self.pointer}: {self.detail}" if self.pointer else self.detail


def check_type_name(name: str) -> None:
    """Raises SchemaError."""
    try:
        msgspec.convert(name, TypeName)
    except msgspec.ValidationError as error:
        raise SchemaError(str(error), "") from None
    if not name.isprintable():
        raise SchemaError("the name of an event type has no control characters", "")


def check_event_type(entry: EventTypeEntry) -> None:
    """Raises SchemaError for the first fault."""
    numbers = [each.version for each in entry.versions]
    if numbers != sorted(set(numbers)):
        raise SchemaError("versions have to be in ascending order, each once", "/versions")
    for number, version in enumerate(entry.versions):
        place = f"/versions/{number}"
        try:
            with step_budget:
                _check_version(version, place)
        except TooManySteps as error:
            raise SchemaError(str(error), f"{place}/schema") from None


def payload_fault(entry: EventTypeEntry, payload: bytes) -> PayloadFault | None:
    """Why a payload is not valid by any version of its type, by the newest one; None if it is valid, or the type has no
    versions."""
    if not entry.versions:
        return None
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return PayloadFault("", "not JSON")
    before = _left.set(STEPS)
    try:
        with step_budget:
            faults = [_fault(version.schema, value) for version in entry.versions]
    except (TooManySteps, RecursionError):
        return PayloadFault("", "too large to be checked with this schema")
    finally:
        _left.reset(before)
    return None if None in faults else faults[-1]


def _check_version(version: EventVersion, place: str) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema import SchemaError as InvalidSchema

    schema_place = f"{place}/schema"
    for steps, node in _nodes(version.schema, ()):
        _check_node(version.schema, node, schema_place + pointer_of(steps))
    try:
        Draft202012Validator.check_schema(version.schema)
    except InvalidSchema as error:
        raise SchemaError(_short(error.message), schema_place + pointer_of(error.absolute_path)) from None
    for number, example in enumerate(version.examples):
        fault = payload_fault(EventTypeEntry(versions=(version,)), msgspec.json.encode(example))
        if fault is not None:
            raise SchemaError(f"the example is not valid by the schema: {fault}", f"{place}/examples/{number}")


def _nodes(value: object, steps: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Each object in a schema, with the steps to it. Raises SchemaError if it is nested too deeply."""
    if len(steps) > MOST_DEPTH:
        raise SchemaError(f"nested more than {MOST_DEPTH} levels deep", "/versions")
    if isinstance(value, dict):
        yield steps, value
        for name, each in value.items():
            yield from _nodes(each, (*steps, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _nodes(each, (*steps, number))


def _check_node(root: Mapping[str, Any], node: Mapping[str, Any], place: str) -> None:
    for keyword in _UNBOUNDED & node.keys():
        raise SchemaError(f"{keyword} is not supported", f"{place}/{keyword}")
    ref = node.get("$ref")
    if isinstance(ref, str) and not _is_within(root, ref):
        raise SchemaError(f"$ref leads nowhere in this schema: {_short(ref)}", f"{place}/$ref")
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        try:
            compiled_pattern(pattern)
        except ValueError as error:
            raise SchemaError(f"RE2 does not take the pattern: {_short(str(error))}", f"{place}/pattern") from None


def _is_within(root: Mapping[str, Any], ref: str) -> bool:
    """Whether a reference leads to a part of the schema by a JSON pointer: nothing is fetched."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    try:
        Registry().with_resource("", DRAFT202012.create_resource(root)).resolver().lookup(ref)
    except Unresolvable:
        return False
    return ref.startswith("#")


def _fault(schema: Mapping[str, Any], value: object) -> PayloadFault | None:
    """The first fault of a JSON value; None if it is valid."""
    from referencing import Registry

    try:
        error = next(_validator()(schema, registry=Registry()).iter_errors(value), None)
    except (ArithmeticError, ValueError):  # of a number beyond those of floating point, or half a surrogate pair
        return PayloadFault("", "has a value that cannot be checked with this schema")
    if error is None:
        return None
    return PayloadFault(
        pointer_of(error.absolute_path), f"not valid by {error.validator}: {_short(error.validator_value)}"
    )


@cache
def _validator() -> Any:
    """The validator class of the library, with steps counted."""
    from jsonschema import Draft202012Validator, validators

    applied = {name: _counted(name, apply) for name, apply in Draft202012Validator.VALIDATORS.items()}
    return validators.extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, {**applied, "pattern": _counted("pattern", _match)}
    )


def _counted(name: str, apply: Callable[..., Iterator[Any] | None]) -> Callable[..., Iterator[Any]]:
    def counted(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        steps = 1 + (len(wanted) // 10 if isinstance(wanted, list | dict) else 0)
        if name == "uniqueItems" and isinstance(instance, list):
            steps += len(instance) ** 2 // 100
        left = _left.get() - steps
        _left.set(left)
        if left < 0:
            raise TooManySteps
        yield from apply(validator, wanted, instance, schema) or ()

    return counted


def _match(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not is_found(pattern, instance):
        yield ValidationError("does not match")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
