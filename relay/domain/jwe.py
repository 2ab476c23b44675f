"""Encryption of payloads for a receiver, and decryption of its answers: JWE in the compact form (RFC 7516), with
ECDH-ES+A256KW or RSA-OAEP-256, and A256GCM. The cryptography itself is the library's.

A key is a JWK (RFC 7517) as JSON text.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from relay.domain.json_pointer import NOT_JSON

# The library is imported where it is used, because most processes do not need it and it takes memory.

MEDIA_TYPE: Final = "application/jose"
_ENC: Final = "A256GCM"
_ALGS: Final = {"EC": "ECDH-ES+A256KW", "OKP": "ECDH-ES+A256KW", "RSA": "RSA-OAEP-256"}
# Tuples, because any JSON value, also a list, can be looked for in one.
_KINDS: Final = tuple(_ALGS)
_CURVES: Final = {"EC": ("P-256", "P-384", "P-521"), "OKP": ("X25519",)}
_OPERATIONS: Final = {
    "EC": ("deriveBits", "deriveKey"),
    "OKP": ("deriveBits", "deriveKey"),
    "RSA": ("encrypt", "wrapKey"),
}
_PERMISSIONS: Final = frozenset({"use", "alg", "key_ops"})
_LEAST_BITS: Final = 2_048
_MOST_BITS: Final = 8_192
"""A longer key costs more time for each message than an attacker."""
_MOST_EXPONENT_BITS: Final = 64
"""Likewise; OpenSSL has this limit for keys of more than 3,072 bits."""
_MOST_KEYS: Final = 64
_MOST_DECRYPTED: Final = 16 * 1024 * 1024
"""Bytes of a token that is decrypted; answers have a cap of their own."""
_MOST_HEADER: Final = 16 * 1024
"""Bytes of its header. The library's default is less than the longest content type that this relay encrypts."""


def check_key(jwk: Mapping[str, Any]) -> None:
    """Raises ValueError unless payloads can be encrypted with this public key."""
    kty, use, alg = jwk.get("kty"), jwk.get("use"), jwk.get("alg")
    if kty not in _KINDS:
        raise ValueError(f"kty is {_shown(kty)}; it has to be EC, OKP or RSA")
    if "d" in jwk:
        raise ValueError("it is a private key (d), which belongs to the receiver alone: give its public part")
    if use not in (None, "enc"):
        raise ValueError(f"use is {_shown(use)}; a key for encryption has 'enc', or none")
    if alg not in (None, _ALGS[kty]):
        raise ValueError(f"alg is {_shown(alg)}; with kty {kty} it has to be {_ALGS[kty]}, or none")
    operations = jwk.get("key_ops")
    listed = operations if isinstance(operations, list) else []
    if operations is not None and not any(each in _OPERATIONS[kty] for each in listed):
        raise ValueError(f"key_ops has none of {', '.join(_OPERATIONS[kty])}")
    if kty in _CURVES and jwk.get("crv") not in _CURVES[kty]:
        raise ValueError(f"crv is {_shown(jwk.get('crv'))}; it has to be one of {', '.join(_CURVES[kty])}")
    if kty == "RSA" and not _LEAST_BITS <= (bits := _bits(jwk.get("n"))) <= _MOST_BITS:
        raise ValueError(f"the RSA key has {bits} bits; allowed are {_LEAST_BITS} to {_MOST_BITS}")
    if kty == "RSA" and (bits := _bits(jwk.get("e"))) > _MOST_EXPONENT_BITS:
        raise ValueError(f"the exponent of the RSA key has {bits} bits; at most {_MOST_EXPONENT_BITS} are allowed")
    if not isinstance(jwk.get("kid", ""), str):
        raise ValueError("kid is not text")
    try:
        encrypt(key_text(jwk), b"", MEDIA_TYPE)
    except ValueError as error:
        raise ValueError(f"it cannot encrypt: {error}") from None


def key_text(jwk: Mapping[str, Any]) -> str:
    """A key as it is kept; without its permissions, which libraries read differently, once they are checked."""
    return json.dumps({name: value for name, value in jwk.items() if name not in _PERMISSIONS}, sort_keys=True)


class UsableKey(NamedTuple):
    """A key of a JWK Set, and until when it is the one to be used (Unix seconds)."""

    text: str
    until: float


def usable_key(key_set: bytes, now: float) -> UsableKey:
    """The first key of a JWK Set that can be used at `now` (Unix seconds), by `nbf` and `exp` if it has these. Raises
    ValueError that says why there is none. It takes milliseconds for a set with many wrong keys."""
    try:
        keys = msgspec.json.decode(key_set, type=dict[str, Any])["keys"]
    except (*NOT_JSON, KeyError):
        raise ValueError("it is no JWK Set") from None
    if not isinstance(keys, list) or len(keys) > _MOST_KEYS:
        raise ValueError(f"it is no JWK Set of at most {_MOST_KEYS} keys")
    why, until = "it has no keys", inf
    for at, jwk in enumerate(keys):
        try:
            if not isinstance(jwk, dict):
                raise ValueError("it is no JWK")
            begins, ends = _time(jwk, "nbf", now), _time(jwk, "exp", inf)
            if not begins <= now < ends:
                until = min(until, begins) if now < begins else until
                raise ValueError("its time is over, or has not begun")
            check_key(jwk)
        except ValueError as error:
            why = f"keys[{at}]: {error}"
        else:
            return UsableKey(key_text(jwk), min(until, ends))
    raise ValueError(why)


def encrypt(key: str, body: bytes, content_type: str) -> bytes:
    """The JWE of `body`, for the owner of the public `key`. Raises ValueError for a key that cannot encrypt."""
    from joserfc import jwe
    from joserfc.errors import JoseError

    try:
        jwk: Any = _imported(key)
        alg = _ALGS[jwk.key_type]
        header = {"alg": alg, "enc": _ENC, "cty": content_type, **({"kid": jwk.kid} if jwk.kid else {})}
        token: str = jwe.encrypt_compact(header, body, jwk, algorithms=[alg, _ENC])
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from None
    return token.encode()


def decrypt(keys: Sequence[str], token: bytes) -> tuple[bytes, str | None]:
    """The body in a JWE, and its media type, by the one of the private `keys` that fits. Raises ValueError."""
    from joserfc import jwe
    from joserfc.errors import JoseError

    if len(token) > _MOST_DECRYPTED:
        raise ValueError("it is too long")
    for key in keys:
        try:
            jwk: Any = _imported(key)
            registry: Any = jwe.JWERegistry(algorithms=[_ALGS[jwk.key_type], _ENC])
            registry.max_protected_header_length = _MOST_HEADER
            registry.max_ciphertext_length = _MOST_DECRYPTED
            registry.max_encrypted_key_length = _MOST_BITS
            opened: Any = jwe.decrypt_compact(token.strip(), jwk, registry=registry)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue
        body: bytes = opened.plaintext
        cty = opened.headers().get("cty")
        return body, cty if isinstance(cty, str) and cty.isascii() and cty.isprintable() else None
    raise ValueError("none of the keys decrypts it")


def opened(keys: Sequence[str], content_type: str | None, body: bytes) -> tuple[str | None, bytes]:
    """Content type and body of an answer, decrypted if it is encrypted and one of the private `keys` fits. Otherwise it
    stays as it is."""
    if not keys or (content_type or "").partition(";")[0].strip().lower() != MEDIA_TYPE:
        return content_type, body
    try:
        plain, media_type = decrypt(keys, body)
    except ValueError:
        return content_type, body
    return media_type, plain


def private_keys(text: str) -> tuple[str, ...]:
    """The keys of a private JWK, or of a JWK Set of these. Raises ValueError, without any of it."""
    try:
        known = msgspec.json.decode(text, type=dict[str, Any])
    except NOT_JSON:
        raise ValueError("it is neither a JWK nor a JWK Set, as JSON") from None
    keys = known["keys"] if isinstance(known.get("keys"), list) else [known]
    for jwk in keys:
        if not isinstance(jwk, dict) or jwk.get("kty") not in _KINDS or "d" not in jwk:
            raise ValueError("it is no private JWK with kty EC, OKP or RSA")
        try:
            _imported(key_text(jwk))
        except Exception as error:  # noqa: BLE001 - whatever it is, the text would show the key
            raise ValueError(f"it is no valid JWK ({type(error).__name__})") from None
    return tuple(map(key_text, keys))


@lru_cache(maxsize=1024)
def _imported(key: str) -> Any:
    from joserfc.jwk import import_key

    return import_key(json.loads(key))


def _bits(modulus: object) -> int:
    """Of an RSA modulus in base64url."""
    text = modulus if isinstance(modulus, str) else ""
    try:
        return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))).bit_length()
    except ValueError:
        return 0


def _time(jwk: Mapping[str, Any], name: str, default: float) -> float:
    value = jwk.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is no number of seconds")
    return value


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]
