"""API keys: the bodies of requests, and keys as they are shown."""

from typing import Final, Literal, TypedDict

import msgspec

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
