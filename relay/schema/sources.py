"""Sources as the API shows them."""

from typing import Any, Literal, TypedDict

from relay.schema.receivers import ParkedView, SecretTurnView


class SourceView(TypedDict):
    """A source with an entry of its own. `declared_by`: `file` or `api`. `etag`: changes with every change of it.
    `refused`: why its newest settings are not in force here. `settings`: all of them, also those at their defaults,
    with secrets masked. Null: a newer version wrote what this one cannot read."""

    source_id: str
    declared_by: str | None
    etag: str
    refused: str | None
    settings: dict[str, Any] | None


class NewSourceView(SourceView):
    """A source that was just declared. `secret`: the generated one of its callback, only in this response."""

    secret: str | None


class RotatedSourceView(SourceView, SecretTurnView):
    """A source with a new secret of its callback. `secret`: the generated one, only in this response; null if it was
    given, or is a private key, which only the relay needs. `public_key`: verifies its signatures then. `former_until`:
    when the former one signs for the last time; null: it does not sign any more. RFC 3339."""


class SourceItem(TypedDict):
    """A source in a list. `callback`: the URL where its results are POSTed, or `kafka`. `inbound`: the kind of its
    webhooks."""

    source_id: str
    declared_by: str | None
    refused: str | None
    callback: str | None
    answers: Literal["all", "non_empty", "none"] | None
    inbound: str | None


class SourcePage(TypedDict):
    """`cursor`: of the next page; null on the last one. A page may be short, or empty, and still have one."""

    items: list[SourceItem]
    cursor: str | None


class ResultsView(TypedDict):
    """A source's results, and what happens to them when it is removed."""

    parked: ParkedView
    then: str


class SourceRemovalView(TypedDict):
    """The removal of a source. `removed`: false for a dry run."""

    source_id: str
    removed: bool
    results: ResultsView
