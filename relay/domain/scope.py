"""Scopes: the permissions of an API client. Pure.

`ingest:<source>` and `read:<source>` name a source, or with a trailing `*` all with that prefix; `receiver:<name>` and
`owner:<id>` name one exactly. `metrics` and `admin` have no name; `admin` allows everything.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from relay.domain.errors import InvalidRecord
from relay.domain.identity import check_id, is_receiver_name

ScopeKind = Literal["ingest", "read", "receiver", "owner", "metrics", "admin"]

_BARE: Final = frozenset({"metrics", "admin"})
_PATTERNS: Final = frozenset({"ingest", "read"})
_ALLOWED: Final = "ingest:<source>, read:<source>, receiver:<name>, owner:<id>, metrics and admin are allowed"


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """`name`: of the source, receiver or owner; empty for scopes without a name."""

    kind: ScopeKind
    name: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind in _BARE else f"{self.kind}:{self.name}"

    def covers(self, kind: ScopeKind, name: str) -> bool:
        """Whether it permits an operation that needs the scope `kind` for `name`."""
        if self.kind == "admin":
            return True
        if self.kind != kind:
            return False
        if kind in _PATTERNS and self.name.endswith("*"):
            return name.startswith(self.name[:-1])
        return self.name == name


def parse_scope(text: str) -> Scope:
    """The scope in `text`. Raises ValueError that lists the allowed scopes."""
    word, colon, name = text.partition(":")
    if word not in get_args(ScopeKind) or bool(colon) == (word in _BARE):
        raise ValueError(f"{text[:80]!r} is not a scope: {_ALLOWED}")
    kind = cast(ScopeKind, word)
    if kind in _BARE:
        return Scope(kind)
    if kind == "receiver" and not is_receiver_name(name):
        raise ValueError(f"{text[:80]!r} is not a scope: {name[:80]!r} is not a receiver name")
    try:
        return Scope(kind, check_id(name, f"the name in the scope {text[:80]!r}"))
    except InvalidRecord as error:
        raise ValueError(error.detail) from error


@dataclass(frozen=True, slots=True)
class Access:
    """An API client and its permissions. `who`, for display and audit: `key:<id>`, `RELAY_API_KEY` or `anybody`, with
    the prefix `session of` or `portal for <owner> of` if it applies.

    `key`: the id of its key, `api` for the key in the settings; None without a key. `only`: names to which access to
    the owners' receivers is limited; None for all.
    """

    who: str
    scopes: frozenset[Scope]
    key: str | None = None
    only: frozenset[str] | None = None

    def may(self, kind: ScopeKind, name: str = "") -> bool:
        return any(scope.covers(kind, name) for scope in self.scopes)

    @property
    def owners(self) -> frozenset[str]:
        """The owners in its scopes."""
        return self.named("owner")

    def named(self, kind: ScopeKind) -> frozenset[str]:
        """The names in its scopes of `kind`."""
        return frozenset(scope.name for scope in self.scopes if scope.kind == kind)

    def has_some(self, *kinds: ScopeKind) -> bool:
        """Whether it has a scope of one of these kinds, or `admin`."""
        return any(scope.kind in kinds or scope.kind == "admin" for scope in self.scopes)


def may_do_everything(who: str, key: str | None = None) -> Access:
    """The access of an administrator."""
    return Access(who, frozenset({Scope("admin")}), key)


def in_text(scopes: Iterable[Scope]) -> list[str]:
    """The scopes as sorted text."""
    return [str(scope) for scope in sorted(scopes)]
