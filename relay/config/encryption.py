"""Encrypts secrets that were given over the API, before they are stored on the log.

The entry has `${enc:<id of the key>:<base64url of nonce and ciphertext>}` instead of the secret, AES-256-GCM. The
entry's kind and name and the field are authenticated data, so the ciphertext cannot be decrypted in another place.
"""

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from relay.config.problems import Place, dotted, raise_all
from relay.domain.errors import UserError
from relay.domain.identity import base64url

KEY_BYTES: Final = 32
ENCRYPTED: Final = "enc:"
"""Prefix of the reference name of an encrypted secret; no environment variable can have such a name."""
_NONCE_BYTES: Final = 12
_REFERENCE: Final = re.compile(r"\$\{enc:([0-9a-f]{8}):([A-Za-z0-9_-]+)\}")
_KEY_ID: Final = re.compile(rb"\$\{enc:([0-9a-f]{8}):")
_NAME: Final = re.compile(r"enc:[0-9a-f]{8}:[A-Za-z0-9_-]+")


class CannotOpen(UserError):
    """An encrypted secret cannot be decrypted here. The message says why, without any part of the secret."""


class KeyRing:
    """Encrypts with the first key, and decrypts with any. `keys`: 32 bytes each."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {hashlib.sha256(b"relay key id\0" + key).hexdigest()[:8]: key for key in keys}
        self.newest = next(iter(self._keys), None)
        """The id of the key that encrypts."""

    @property
    def can_encrypt(self) -> bool:
        return self.newest is not None

    @property
    def beginnings(self) -> frozenset[bytes]:
        """Prefixes of the reference names of secrets whose key is known."""
        return frozenset(f"{ENCRYPTED}{key_id}".encode() for key_id in self._keys)

    def encrypted(self, text: str, place: Place, random_bytes: Callable[[int], bytes] = os.urandom) -> str:
        """The reference that stands for `text` at `place`, e.g. `("receivers", "ci", "secret")`. Needs a key."""
        if self.newest is None:
            raise AssertionError("called without an encryption key")
        from cryptography.hazmat.primitives.ciphers.aead import (
            AESGCM,  # takes memory, and most processes do not need it
        )

        nonce = random_bytes(_NONCE_BYTES)
        sealed: bytes = AESGCM(self._keys[self.newest]).encrypt(nonce, text.encode(), _context(place))
        data = base64url(nonce + sealed)
        return f"${{{ENCRYPTED}{self.newest}:{data}}}"

    def opened(self, text: str, place: Place) -> str:
        """`text` with its encrypted secrets decrypted. Raises CannotOpen."""
        return _REFERENCE.sub(lambda found: self._open(found[1], found[2], place), text)

    def renewed(self, text: str, place: Place) -> str:
        """`text` with its encrypted secrets re-encrypted with the first key. Raises CannotOpen."""

        def again(found: re.Match[str]) -> str:
            return found[0] if found[1] == self.newest else self.encrypted(self._open(found[1], found[2], place), place)

        return _REFERENCE.sub(again, text)

    def _open(self, key_id: str, data: str, place: Place) -> str:
        key = self._keys.get(key_id)
        if key is None:
            raise CannotOpen(f"encrypted with the key {key_id}, which RELAY_SECRETS_KEY does not have")
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            sealed = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
            clear: bytes = AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _context(place))
        except (InvalidTag, binascii.Error, ValueError):
            raise CannotOpen("encrypted for another place, or damaged: set it again") from None
        return clear.decode()


NO_KEYS: Final = KeyRing()


def secret_place(source_id: str, message_id: str) -> Place:
    """The place of the signing secret that a message brings for its own endpoint."""
    return "messages", source_id, message_id, "signing_secret"


def is_encrypted_name(name: str) -> bool:
    """Whether a reference's name is that of an encrypted secret."""
    return _NAME.fullmatch(name) is not None


def has_encrypted(text: str) -> bool:
    return _REFERENCE.search(text) is not None


def without_encrypted(text: str, shown: str) -> str:
    """`text` with `shown` in place of each encrypted secret."""
    return _REFERENCE.sub(lambda _: shown, text)


def open_all(raw: object, ring: KeyRing, *, origin: str, place: Place) -> object:
    """A copy of the tree with every secret decrypted. `place`: where the tree is in `origin`.

    Raises UserError with a line for each secret that cannot be decrypted.
    """
    mistakes: list[str] = []
    found = map_texts(raw, place, lambda text, where: _opened_or_noted(text, where, ring, origin, mistakes))
    raise_all(mistakes)
    return found


def open_some(raw: object, ring: KeyRing, place: Place) -> object:
    """As `open_all`, but secrets that cannot be decrypted stay as they are."""
    return map_texts(raw, place, lambda text, where: _opened_or_noted(text, where, ring, "", []))


def renew_all(raw: object, ring: KeyRing, place: Place) -> object:
    """A copy of the tree with every secret re-encrypted with the first key. Raises CannotOpen."""
    return map_texts(raw, place, ring.renewed)


def key_ids_in(value: bytes) -> set[str]:
    """Ids of the keys that encrypted secrets in a record."""
    return {found.decode() for found in _KEY_ID.findall(value)}


def secrets_of(raw: object, ring: KeyRing, place: Place) -> Iterator[str]:
    """The decrypted secrets in a tree that `open_all` can decrypt."""
    for where, text in texts_in(raw, place):
        for each in _REFERENCE.finditer(text):
            yield ring.opened(each[0], where)


def _opened_or_noted(text: str, where: Place, ring: KeyRing, origin: str, mistakes: list[str]) -> str:
    try:
        return ring.opened(text, where)
    except CannotOpen as error:
        mistakes.append(f"{origin}: {dotted(where)}: {error}")
        return text


def map_texts(value: object, place: Place, change: Callable[[str, Place], str]) -> Any:
    """A copy of a tree of mappings and lists with each text replaced by `change(text, place)`."""
    if isinstance(value, str):
        return change(value, place)
    if isinstance(value, Mapping):
        return {key: map_texts(inner, (*place, key), change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(inner, (*place, index), change) for index, inner in enumerate(value)]
    return value


def texts_in(value: object, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every text in the tree (except keys), with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts_in(inner, (*place, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from texts_in(inner, (*place, index))


def _context(place: Place) -> bytes:
    """The authenticated data. Positions in a list do not count, because a rotation shifts the secrets."""
    return json.dumps([step for step in place if isinstance(step, str)]).encode()
