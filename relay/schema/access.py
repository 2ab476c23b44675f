"""API keys, sessions of the console, and links into the portal: requests and responses."""

from typing import Annotated, Final, Literal, TypedDict

import msgspec

from relay.domain.session import MOST_RECEIVERS

USUAL_OVERLAP_S: Final = 86_400.0


class WantedKey(msgspec.Struct, forbid_unknown_fields=True):
    """A key to create. `scopes`: its rights, such as `ingest:<source>`, `read:<source>`, `receiver:<name>`, `metrics`,
    `admin`. `expires_in`: seconds, or text such as `30d`; null: never."""

    scopes: list[str]
    name: str = ""
    expires_in: float | str | None = None


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """A rotation. `overlap`: how long the old secret stays valid: seconds, or text such as `1d`."""

    overlap: float | str = USUAL_OVERLAP_S


class KeyView(TypedDict):
    """A key, without its text. `last_used_at`: to the minute; null: never, not for a year, or unknown at present. Times
    are RFC 3339."""

    id: str
    name: str
    scopes: list[str]
    status: Literal["active", "expired", "revoked"]
    created_at: str | None
    created_by: str
    expires_at: str | None
    rotated_at: str | None
    old_secret_until: str | None
    last_used_at: str | None


class NewKey(KeyView):
    """A key with its text, `key`, which only this response has."""

    key: str


class KeyPage(TypedDict):
    """Newest first. `cursor`: of the next page; null on the last one."""

    items: list[KeyView]
    cursor: str | None


USUAL_S: Final = 12 * 3_600.0


class WantedSession(msgspec.Struct, forbid_unknown_fields=True):
    """`key`: the key to make it with, in place of the one in the header; also a portal token, which is checked and
    given back. `expires_in`: at most 7 days, and no longer than the key: seconds, or text such as `12h`."""

    key: str | None = None
    expires_in: float | str = USUAL_S


class WantedLink(msgspec.Struct, forbid_unknown_fields=True):
    """A portal link to create. `owner`: whose receivers it shows. `hours`: validity, at most 168. `receivers`: only
    these of the owner; null: all."""

    owner: str
    hours: float = 24
    receivers: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MOST_RECEIVERS)] | None = None


class NewSession(TypedDict):
    """A session. `token`: sent like a key, `Authorization: Bearer rs_...`. `scopes`: its rights. `receivers`: only
    these of its owner; null: no such limit."""

    token: str
    expires_at: str | None
    scopes: list[str]
    receivers: list[str] | None


class SessionView(TypedDict):
    """The caller. `proof`: the kind of its credential; `nothing` while no key exists. `key`: the id of its key; null if
    it has none. `expires_at` null: never."""

    who: str
    proof: Literal["key", "session", "portal", "nothing"]
    key: str | None
    owner: str | None
    scopes: list[str]
    receivers: list[str] | None
    expires_at: str | None


class EndedSession(TypedDict):
    """The end of a session. `ended`: whether it is rejected from now on, by all processes within 2 s."""

    ended: bool
    detail: str


class NewLink(TypedDict):
    """A portal link. `url`: shows the owner's receivers to everyone who has it, until it expires or its key is
    revoked."""

    url: str
    expires_at: str | None
    owner: str
    receivers: list[str] | None
