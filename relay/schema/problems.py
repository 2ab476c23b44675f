"""Problem details (RFC 9457)."""

from typing import Required, TypedDict


class Place(TypedDict, total=False):
    """A mistake, and its place: a `header`, a `parameter`, a part of the `path`, or the `pointer` (RFC 6901) to a
    place in the body."""

    detail: Required[str]
    header: str
    parameter: str
    path: str
    pointer: str


class ProblemView(TypedDict):
    """Problem details (RFC 9457). `type`: path of a page with what it means and what to do; `detail`: the particular
    cause."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[Place]
