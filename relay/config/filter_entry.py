"""Entries of receivers.yaml for filters and ordering: which subscribed messages a receiver gets, and in which order.

The operators are those of CloudEvents Subscriptions (exact, prefix, suffix, all, any, not), and some that these lack.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from relay.config.entry_types import Entry, FieldData, PositiveDuration, describe, field_check
from relay.config.problems import Place, dotted
from relay.config.references import check_references
from relay.domain.filters import (
    ATTRIBUTES,
    BY_HEADER,
    ORDER_KINDS,
    Check,
    Filter,
    Order,
    OrderKind,
    Scalar,
    Test,
    all_of,
    any_of,
    compared,
    header_exists,
    negated,
    of_header,
    of_pointer,
    one_of,
    pointer_exists,
    prefix,
    suffix,
)
from relay.domain.headers import check_forwardable
from relay.domain.json_pointer import check_pointer

MOST_DEPTH: Final = 8
MOST_CONDITIONS: Final = 100
MOST_VALUES: Final = 100
MOST_CHARACTERS: Final = 1_024
"""Maximum length of a text to compare, or of a pointer."""
MOST_DIGITS: Final = 64
_T = TypeVar("_T")
_FORMS: Final = ("all", "any", "not", "pointer", "header")
_ORDERS: Final[tuple[Order, ...]] = ("gt", "gte", "lt", "lte")


_LEFT_OUT: Final[Any] = None
"""Whether a field was given is in `model_fields_set`, because null is a value that a filter may look for."""


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("not a finite number")
    if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
        raise ValueError(f"a number of more than {MOST_DIGITS} digits")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not text; put it in quotes")
    if len(value) > MOST_CHARACTERS:
        raise ValueError(f"{len(value)} characters; at most {MOST_CHARACTERS}")
    check_references(value)
    return value


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    raise ValueError("not a text, number, true, false or null; lists and mappings cannot be compared")


def _some(values: tuple[_T, ...]) -> tuple[_T, ...]:
    if not values:  # with min_length, pydantic would also report this if a member is invalid
        raise ValueError("is empty; at least 1 needed")
    return values


def _pointer(value: object) -> str:
    return check_pointer(_text(value))


def check_filter_header(value: object) -> str:
    name = _text(value)
    if name.lower() not in ATTRIBUTES:
        try:
            check_forwardable(name)
        except ValueError:
            raise ValueError(
                f"{name[:80]!r} is not a header that a message can have; allowed are forwarded headers "
                f"(relay-header-...) and {', '.join(sorted(ATTRIBUTES))}"
            ) from None
    return name.lower()


_TEXT_SCHEMA: Final = {"type": "string", "maxLength": MOST_CHARACTERS}
FilterText = Annotated[str, PlainValidator(_text), WithJsonSchema(_TEXT_SCHEMA)]
FilterPointer = Annotated[
    str, PlainValidator(_pointer), WithJsonSchema(_TEXT_SCHEMA | {"pattern": "^(/([^~/]|~[01])*)*$"})
]
FilterHeader = Annotated[str, PlainValidator(check_filter_header), WithJsonSchema(_TEXT_SCHEMA)]
FilterNumber = Annotated[int | float, PlainValidator(_number), WithJsonSchema({"type": "number"})]
FilterScalar = Annotated[
    Scalar, PlainValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean", "null"]})
]
_NOT_EMPTY: Final = AfterValidator(_some)
_MIN_ITEMS: Final[dict[str, Any]] = {"minItems": 1}
Inner = Annotated[
    tuple["FilterEntry", ...],
    Field(strict=False, max_length=MOST_CONDITIONS, json_schema_extra=_MIN_ITEMS),
    _NOT_EMPTY,
]
FilterScalars = Annotated[
    tuple[FilterScalar, ...],
    Field(strict=False, max_length=MOST_VALUES, json_schema_extra=_MIN_ITEMS),
    _NOT_EMPTY,
]


def _no_defaults(schema: dict[str, Any], model: type[BaseModel]) -> None:
    describe(schema, model)
    for field in schema.get("properties", {}).values():
        field.pop("default", None)


class FilterEntry(Entry):
    """Either `all`, `any` or `not` of other filters, or tests of one value: that at a JSON `pointer` (RFC 6901) in the
    payload, or that of a `header`. All tests of a value have to match."""

    model_config = ConfigDict(json_schema_extra=_no_defaults)

    all_: Inner = Field(default=_LEFT_OUT, alias="all")
    """Filters that all have to match."""
    any_: Inner = Field(default=_LEFT_OUT, alias="any")
    """Filters of which at least one has to match."""
    not_: "FilterEntry" = Field(default=_LEFT_OUT, alias="not")
    """A filter that must not match."""
    pointer: FilterPointer = Field(default=_LEFT_OUT)
    """JSON pointer to the value in the payload."""
    header: FilterHeader = Field(default=_LEFT_OUT)
    """Header of the message whose value is tested."""
    exact: FilterScalar = Field(default=_LEFT_OUT)
    """The value has to equal this."""
    in_: FilterScalars = Field(default=_LEFT_OUT, alias="in")
    """The value has to equal one of these."""
    prefix: FilterText = Field(default=_LEFT_OUT)
    """The value has to begin with this text."""
    suffix: FilterText = Field(default=_LEFT_OUT)
    """The value has to end with this text."""
    exists: bool = Field(default=_LEFT_OUT)
    """Whether the value has to be present (`true`) or absent (`false`)."""
    gt: FilterNumber = Field(default=_LEFT_OUT)
    """The value has to be greater than this."""
    gte: FilterNumber = Field(default=_LEFT_OUT)
    """The value has to be at least this."""
    lt: FilterNumber = Field(default=_LEFT_OUT)
    """The value has to be less than this."""
    lte: FilterNumber = Field(default=_LEFT_OUT)
    """The value has to be at most this."""

    @field_check("exact", "in_", "gt", "gte", "lt", "lte")
    def _text_of_a_header(cls, value: Any, data: FieldData) -> None:
        given = value if isinstance(value, tuple) else (value,)
        if data.get("header") is not None and not all(isinstance(each, str) for each in given):
            raise ValueError("a header is text and can only be compared with texts; put them in quotes")

    @model_validator(mode="after")
    def _one_form(self) -> "FilterEntry":
        given = self._given()
        forms = [name for name in _FORMS if name in given]
        tests = [name for name in given if name not in _FORMS]
        if not forms:
            raise ValueError(f"needs one of {', '.join(_FORMS)}")
        if len(forms) > 1:
            raise ValueError(f"has {' and '.join(forms)}; leave out all but one, and combine them with all or any")
        if forms[0] not in ("pointer", "header") and tests:
            raise ValueError(f"{tests[0]!r} is a test of a pointer or a header, not of {forms[0]!r}")
        if forms[0] in ("pointer", "header") and not tests:
            raise ValueError(f"needs a test of the {forms[0]}: {', '.join(_TESTS)}")
        return self

    @model_serializer(mode="plain")
    def as_given(self) -> dict[str, object]:
        """The fields that were given, in JSON's types."""
        return {alias: _as_json(getattr(self, _NAMES[alias])) for alias in self._given()}

    def compiled(self) -> Filter:
        """The filter, ready for use."""
        return Filter(json.dumps(self.as_given(), sort_keys=True), self._test())

    def _given(self) -> list[str]:
        return [alias for alias, name in _NAMES.items() if name in self.model_fields_set]

    def _test(self) -> Test:
        given = self._given()
        if "all" in given:
            return all_of([each._test() for each in self.all_])
        if "any" in given:
            return any_of([each._test() for each in self.any_])
        if "not" in given:
            return negated(self.not_._test())
        tests = [self._of_value(check) for check in self._checks()]
        if "exists" in given:
            exists = pointer_exists(self.pointer, self.exists) if "pointer" in given else None
            tests.append(exists or header_exists(self.header, self.exists))
        return all_of(tests)

    def _of_value(self, check: Check) -> Test:
        return of_header(self.header, check) if self.pointer is None else of_pointer(self.pointer, check)

    def _checks(self) -> list[Check]:
        given = self._given()
        found = [one_of([self.exact])] if "exact" in given else []
        found += [one_of(self.in_)] if "in" in given else []
        found += [prefix(self.prefix)] if "prefix" in given else []
        found += [suffix(self.suffix)] if "suffix" in given else []
        return found + [compared(order, getattr(self, order)) for order in _ORDERS if order in given]


_NAMES: Final = {field.alias or name: name for name, field in FilterEntry.model_fields.items()}
"""Field names by their aliases in the file."""
_TESTS: Final = tuple(name for name in _NAMES if name not in _FORMS)


def _as_json(value: object) -> object:
    if isinstance(value, FilterEntry):
        return value.as_given()
    return [_as_json(each) for each in value] if isinstance(value, tuple) else value


def _bounded(value: object) -> object:
    """`value`, if its depth and number of conditions are allowed; checked before anything recurses into it."""
    rest: list[tuple[object, Place]] = [(value, ())]
    conditions = 0
    while rest:
        here, place = rest.pop()
        if not isinstance(here, Mapping):
            continue
        depth = 1 + sum(isinstance(step, str) for step in place)
        inner = list(_within(here, place))
        conditions += not inner
        if depth > MOST_DEPTH:
            raise ValueError(f"is nested more than {MOST_DEPTH} deep, at {dotted(place)}")
        if conditions > MOST_CONDITIONS:
            raise ValueError(f"has more than {MOST_CONDITIONS} conditions")
        rest += inner
    return value


def _within(here: Mapping[object, object], place: Place) -> list[tuple[object, Place]]:
    found: list[tuple[object, Place]] = []
    for word in ("all", "any"):
        listed = here.get(word)
        if isinstance(listed, list | tuple):
            found += [(each, (*place, word, number)) for number, each in enumerate(listed)]
    if "not" in here:
        found.append((here["not"], (*place, "not")))
    return found


BoundedFilter = Annotated[FilterEntry, BeforeValidator(_bounded)]


_MOST_CHARACTERS: Final = 256
_EXPECTED: Final = "expected source, receiver, none, a JSON pointer such as /repository/full_name, or header:NAME"


def _order_by(value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise ValueError(_EXPECTED)
    if value.startswith("/"):
        return check_pointer(value)
    if value.startswith(BY_HEADER):
        return BY_HEADER + check_filter_header(value.removeprefix(BY_HEADER))
    if value not in ORDER_KINDS:
        raise ValueError(_EXPECTED)
    return value


class OrderingEntry(Entry):
    """Which messages are delivered in order, one after the other."""

    by: Annotated[str, PlainValidator(_order_by), WithJsonSchema({"type": "string", "maxLength": _MOST_CHARACTERS})] = (
        "source"
    )
    """Order key: `source`, `receiver`, `none`, a JSON pointer into the payload, or `header:NAME`. With the last two,
    messages of a source are in order with those that have the same value there."""
    patience: PositiveDuration | None = None
    """How long a failing message may block those behind it. After that it is retried beside them, with the header
    `relay-out-of-order: true`. Default: until it is delivered or given up."""

    @field_check("patience")
    def _holds_up_others(cls, patience: float | None, data: FieldData) -> None:
        if patience is not None and data.get("by") == "none":
            raise ValueError("no message waits for another with 'by: none'; leave one of the two out")


def _value_of(value: object) -> str:
    if (by := _order_by(value)) in ORDER_KINDS:
        raise ValueError("expected a JSON pointer such as /repository/full_name, or header:NAME")
    return by


class CoalesceEntry(Entry):
    """Which messages take the place of each other, and for how long each waits for newer ones."""

    key: Annotated[str, PlainValidator(_value_of), WithJsonSchema({"type": "string", "maxLength": _MOST_CHARACTERS})]
    """A JSON pointer into the payload, or `header:NAME`: messages of a source with the same value there."""
    window: PositiveDuration
    """Of the messages that arrive within it only the newest is sent, at its end. The first one opens it."""


OrderingValue = Annotated[
    Annotated[OrderKind, Tag("(word)")] | Annotated[OrderingEntry, Tag("(mapping)")],
    Discriminator(lambda value: "(mapping)" if isinstance(value, dict | OrderingEntry) else "(word)"),
]


def order_by(ordering: "str | OrderingEntry") -> str:
    """The order key, in either form of the setting."""
    return ordering if isinstance(ordering, str) else ordering.by


def patience_of(ordering: "str | OrderingEntry") -> float | None:
    return None if isinstance(ordering, str) else ordering.patience
