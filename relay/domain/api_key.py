"""API keys and their stored records. Pure.

A key is written `rk_<id>_<secret>`: the id finds it, and the secret, 32 random bytes, proves it. Only a SHA-256 of it
is stored. 256 random bits cannot be guessed, so a slow hash or a salt would add nothing, and a fast hash can be checked
on every request.

The records are on `receiver_config`. Each is written once and never changed, so that no two processes overwrite each
other's records, whatever their order: `key:<id>` creates a key with its first secret, and its tombstone revokes it
permanently, because the record is never written again; `key-secret:<id>:<n>` adds a secret and sets the time until
which earlier secrets stay valid. `keys:closed` records that a key once existed: removing the last key must not open the
API to everybody.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from msgspec import Struct

from relay.domain.control_key import ControlKey, decode_value, encode_value
from relay.domain.identity import base32
from relay.domain.scope import Access, Scope, in_text, parse_scope
from relay.domain.session import proof_of_digest

MARK: Final = "rk"
_ID_BYTES: Final = 10
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Secret:
    """`digest`: SHA-256 of the key's text, in hex. `others_until`: when earlier secrets expire. Times: Unix seconds."""

    digest: str
    made_at: float
    others_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Key:
    """A key and its secrets, oldest first. Times are Unix seconds; `expires_at` is None if the key never expires."""

    id: str
    name: str
    scopes: frozenset[Scope]
    made_at: float
    made_by: str
    expires_at: float | None
    secrets: tuple[Secret, ...]

    @property
    def access(self) -> Access:
        return Access(f"key:{self.id}", self.scopes, self.id)

    def is_over(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def until(self, secret: Secret) -> float | None:
        """The time at which a newer secret ends this one; None if there is no newer one."""
        newer = self.secrets[self.secrets.index(secret) + 1 :]
        return min((each.others_until for each in newer), default=None)

    def secret_of(self, text: str, now: float) -> Secret | None:
        """The secret in `text`, if it is valid at `now`."""
        given = digest_of(text)
        found = [each for each in self.secrets if _is_good(self.until(each), now) and _equal(given, each.digest)]
        return found[0] if found else None

    def has_good(self, proof: str, now: float) -> bool:
        """Whether a session made with the secret of this `proof` is still valid at `now`."""
        good = [each for each in self.secrets if _is_good(self.until(each), now)]
        return not self.is_over(now) and any(_equal(proof, proof_of_digest(each.digest)) for each in good)

    def old_until(self, now: float) -> float | None:
        """Until when an earlier secret is valid as well; None if there is no such secret."""
        ends = [end for each in self.secrets if (end := self.until(each)) is not None and end > now]
        return max(ends, default=None)


def _is_good(until: float | None, now: float) -> bool:
    return until is None or now < until


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


# the text


class Fresh(NamedTuple):
    """The text of a newly created key, which is not stored, and its digest, which is."""

    id: str
    text: str
    digest: str


def fresh_key(random: Callable[[int], bytes], id: str | None = None) -> Fresh:
    """A new key, or a new secret of key `id`. `random` returns the given number of random bytes."""
    known = id or base32(random(_ID_BYTES))
    text = f"{MARK}_{known}_{base32(random(_SECRET_BYTES))}"
    return Fresh(known, text, digest_of(text))


def id_of(text: str) -> str | None:
    """The id in a key's text; None if the text does not have the form of a key."""
    mark, _, rest = text.partition("_")
    id, _, secret = rest.partition("_")
    return id if mark == MARK and id and secret else None


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


# the records


def secret_key(id: str, digest: str) -> ControlKey:
    """The control key of the record that adds a secret to the API key `id`."""
    return ControlKey("key-secret", f"{id}:{digest[:16]}")


class _StoredKey(Struct):
    """The record of a newly created key, with its first secret."""

    name: str
    scopes: list[Any]
    made_at: float
    made_by: str
    expires_at: float | None
    digest: str


def encode_key(key: Key) -> bytes:
    """The record of a newly created key."""
    [first] = key.secrets
    scopes = in_text(key.scopes)
    return encode_value(_StoredKey(key.name, scopes, key.made_at, key.made_by, key.expires_at, first.digest))


def decode_key(id: str, value: bytes) -> Key:
    """The reverse of `encode_key`. Raises InvalidRecord. A scope that only a newer version knows grants nothing."""
    known = decode_value(_StoredKey, value)
    first = Secret(known.digest, known.made_at)
    return Key(id, known.name, _scopes(known.scopes), known.made_at, known.made_by, known.expires_at, (first,))


def _scopes(texts: Iterable[Any]) -> frozenset[Scope]:
    found = set()
    for text in texts:
        try:
            found.add(parse_scope(text))
        except (ValueError, AttributeError):
            continue
    return frozenset(found)
