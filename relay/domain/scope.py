"""What a caller of the API may do: its scopes. Pure.

`ingest:<source>` and `read:<source>` name a source, or with a trailing `*` all that begin so; `receiver:<name>` and
`owner:<id>` name one exactly. `metrics` and `admin` name nothing; `admin` may do everything.
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
    """`name`: of whom; empty for what names nobody."""

    kind: ScopeKind
    name: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind in _BARE else f"{self.kind}:{self.name}"

    def covers(self, kind: ScopeKind, name: str) -> bool:
        """Whether it lets its bearer do what takes a scope of `kind` about `name`."""
        if self.kind == "admin":
            return True
        if self.kind != kind:
            return False
        if kind in _PATTERNS and self.name.endswith("*"):
            return name.startswith(self.name[:-1])
        return self.name == name


def parse_scope(text: str) -> Scope:
    """The scope that `text` writes. Raises ValueError that says what is allowed."""
    word, colon, name = text.partition(":")
    if word not in get_args(ScopeKind) or bool(colon) == (word in _BARE):
        raise ValueError(f"{text[:80]!r} is no scope: {_ALLOWED}")
    kind = cast(ScopeKind, word)
    if kind in _BARE:
        return Scope(kind)
    if kind == "receiver" and not is_receiver_name(name):
        raise ValueError(f"{text[:80]!r} is no scope: {name[:80]!r} is not a receiver name")
    try:
        return Scope(kind, check_id(name, f"the name in the scope {text[:80]!r}"))
    except InvalidRecord as error:
        raise ValueError(error.detail) from error


@dataclass(frozen=True, slots=True)
class Access:
    """Who calls, and what they may do. `who`, for people and records: `key:<id>`, `RELAY_API_KEY`, or `anybody`; or in
    front of one of these `session of`, `portal for <owner> of`.

    `key`: the id of their key, `api` for the one of the settings; None: they have none. `only`: of the receivers of
    owners, those with these names alone; None: all.
    """

    who: str
    scopes: frozenset[Scope]
    key: str | None = None
    only: frozenset[str] | None = None

    def may(self, kind: ScopeKind, name: str = "") -> bool:
        return any(scope.covers(kind, name) for scope in self.scopes)

    @property
    def owners(self) -> frozenset[str]:
        """Whose receivers are named by its scopes."""
        return self.named("owner")

    def named(self, kind: ScopeKind) -> frozenset[str]:
        """What its scopes of `kind` name."""
        return frozenset(scope.name for scope in self.scopes if scope.kind == kind)

    def has_some(self, *kinds: ScopeKind) -> bool:
        """Whether there is anything of one of these kinds that they may do."""
        return any(scope.kind in kinds or scope.kind == "admin" for scope in self.scopes)


def may_do_everything(who: str, key: str | None = None) -> Access:
    """The access of an administrator."""
    return Access(who, frozenset({Scope("admin")}), key)


def in_text(scopes: Iterable[Scope]) -> list[str]:
    """Sorted, as they are written."""
    return [str(scope) for scope in sorted(scopes)]
