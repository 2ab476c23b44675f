"""Values of which a test knows more than their types say; anything else fails the test."""

from typing import TypeVar

T = TypeVar("T")


def expect(kind: type[T], value: object) -> T:
    """`value`, which has to be of this kind."""
    assert isinstance(value, kind), value
    return value


def present(value: T | None) -> T:
    """`value`, which has to be there."""
    assert value is not None
    return value
