"""Ed25519 keys and signatures of Standard Webhooks 1.0 (`v1a`). A private key is `whsk_` and base64; the receiver needs
only the public key, `whpk_` and base64. The cryptography itself is the library's."""

import base64
import binascii
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # imported where it is used, because most processes do not need it and it takes memory
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PRIVATE: Final = "whsk_"
PUBLIC: Final = "whpk_"
_KEY_BYTES: Final = 32


def is_private_key(text: str) -> bool:
    return text.startswith(PRIVATE)


def is_public_key(text: str) -> bool:
    return text.startswith(PUBLIC)


def public_key(private_key: str) -> str:
    """The public key of `private_key`: `whpk_` and base64. Raises ValueError, without the key in it."""
    return PUBLIC + base64.b64encode(_private(private_key).public_key().public_bytes_raw()).decode()


def check_public_key(key: str) -> None:
    """Raises ValueError unless `key` is a public key."""
    _public(key)


def signature_of(private_key: str, content: bytes) -> bytes:
    """64 bytes, deterministic. Raises ValueError for an invalid private key, without the key in it."""
    signature: bytes = _private(private_key).sign(content)
    return signature


def is_signature(key: str, signature: bytes, content: bytes) -> bool:
    """Whether `signature` is valid for `content` and the public `key`. Raises ValueError for an invalid key."""
    from cryptography.exceptions import InvalidSignature

    try:
        _public(key).verify(signature, content)
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=1024)
def _private(key: str) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw = _decoded(key, PRIVATE)
    if len(raw) not in (_KEY_BYTES, 2 * _KEY_BYTES):
        raise ValueError(f"the key has {len(raw)} bytes after {PRIVATE}; it is 32, or 64 with its public half")
    private = Ed25519PrivateKey.from_private_bytes(raw[:_KEY_BYTES])
    if raw[_KEY_BYTES:] not in (b"", private.public_key().public_bytes_raw()):
        raise ValueError(f"the halves of the key after {PRIVATE} do not belong together")
    return private


@lru_cache(maxsize=1024)
def _public(key: str) -> "Ed25519PublicKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = _decoded(key, PUBLIC)
    if len(raw) != _KEY_BYTES:
        raise ValueError(f"the key has {len(raw)} bytes after {PUBLIC}; it is 32")
    return Ed25519PublicKey.from_public_bytes(raw)


def _decoded(key: str, prefix: str) -> bytes:
    text = key.removeprefix(prefix).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"the key begins with {prefix}, but base64 does not follow") from None
