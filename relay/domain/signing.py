"""Signs outgoing webhooks, and verifies such signatures.

A private Ed25519 key is `whsk_` and base64; the receiver needs only the public key, `whpk_` and base64. Sources:
Standard Webhooks 1.0, HMAC (`v1`) and Ed25519 (`v1a`); GitHub and Stripe manuals; W3C WebSub, 7.1, for SHA-512 in the
style of GitHub. The other two styles do not define SHA-512: there it has a scheme name of its own, which a verifier of
`v1` skips.
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, assert_never

from relay.domain.receiver import SignatureDigest, SigningPolicy
from relay.domain.text import whole_number

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


def _decoded(key: str, prefix: str, what: str = "key") -> bytes:
    text = key.removeprefix(prefix).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ValueError(f"the {what} begins with {prefix}, but base64 does not follow") from None


_SCHEMES: Final[dict[SignatureDigest, str]] = {"sha256": "v1", "sha512": "v1-sha512"}
_V1A: Final = b"v1a,"
WHSEC: Final = "whsec_"
_NEW_SECRET_BYTES: Final = 32


def sign(policy: SigningPolicy, *, webhook_id: str, timestamp: int, body: bytes) -> tuple[tuple[str, str], ...]:
    """`webhook-id`, `webhook-timestamp` (Unix seconds of the attempt), and the signature header of each style.

    Every secret signs, and former ones until they expire, so that receivers can rotate; only `github` has room for just
    one, the newest. Without secrets nothing is signed. The style `http-message` is not among them (`http_message.py`).
    Raises ValueError for a secret that `check_secret` rejects.
    """
    if policy.former:
        policy = with_former(policy, timestamp)
    stamp = str(timestamp)
    headers: tuple[tuple[str, str], ...] = (("webhook-id", webhook_id), ("webhook-timestamp", stamp))
    if not (policy.secrets or policy.private_keys):
        return headers
    for style in policy.styles:
        if style != "http-message":  # which covers the whole request
            headers += (_signature_header(policy, style, webhook_id, stamp, body),)
    return headers


def check_secret(secret: str) -> None:
    """Raises ValueError, without the secret in it, unless `secret` can sign: `whsec_` and base64 of 24-64 bytes,
    `whsk_` and base64 of an Ed25519 key, or plain text."""
    if is_public_key(secret):
        raise ValueError("a public key (whpk_) cannot sign; use its private key, whsk_")
    if is_private_key(secret):
        public_key(secret)
    else:
        _key(secret)


def check_verifier(secret: str) -> None:
    """Raises ValueError, without the secret in it, unless `verify_standard` can use it: like `check_secret`, but with
    public Ed25519 keys, `whpk_`."""
    if is_private_key(secret):
        raise ValueError("a private key (whsk_) belongs to the sender alone; verify with its public key, whpk_")
    if is_public_key(secret):
        _public(secret)
    else:
        _key(secret)


def generate_secret(random_bytes: Callable[[int], bytes]) -> str:
    """A new secret. `random_bytes(n)` returns n unpredictable bytes."""
    return WHSEC + base64.b64encode(random_bytes(_NEW_SECRET_BYTES)).decode()


def secrets_of(policy: SigningPolicy, now: int) -> tuple[str, ...]:
    """HMAC secrets that sign at `now` (Unix seconds), including former ones."""
    return with_former(policy, now).secrets if policy.former else policy.secrets


def keyed_sha256(secret: str, content: bytes) -> bytes:
    """HMAC-SHA-256, keyed as for `webhook-signature`. Raises ValueError for a secret that `check_secret` rejects."""
    return _mac(_key(secret), content, "sha256")


def verify_standard(
    secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float, tolerance_s: float = 300
) -> bool:
    """Whether `headers` have a valid signature of `body` (`v1` for a secret, `v1a` for a public key), with a timestamp
    within `tolerance_s` of `now`.

    Header names may be in any case. Compares in constant time. Raises ValueError for a secret that `check_verifier`
    rejects.
    """
    named = {name.lower(): value for name, value in headers.items()}
    webhook_id, stamp = named.get("webhook-id", ""), named.get("webhook-timestamp", "")
    if not webhook_id or not is_recent(stamp, now, tolerance_s):
        return False
    given = [foreign_bytes(signature) for signature in named.get("webhook-signature", "").split(" ")]
    expected = [_signature(secret, webhook_id, stamp, body).encode() for secret in secrets if not is_public_key(secret)]
    if any(hmac.compare_digest(ours, theirs) for ours in expected for theirs in given):
        return True
    keys = [secret for secret in secrets if is_public_key(secret)]
    content = _content(webhook_id, stamp, body) if keys else b""
    return any(is_signature(key, theirs, content) for key in keys for theirs in _asymmetric(given))


def with_former(policy: SigningPolicy, now: int) -> SigningPolicy:
    """`policy` with the former secrets that still sign at `now` (Unix seconds), after the current ones."""
    signing = [former.secret for former in policy.former if now < former.until]
    return replace(
        policy,
        secrets=(*policy.secrets, *(secret for secret in signing if not is_private_key(secret))),
        private_keys=(*policy.private_keys, *filter(is_private_key, signing)),
        former=(),
    )


def _signature_header(
    policy: SigningPolicy, style: Literal["standard", "github", "stripe"], webhook_id: str, stamp: str, body: bytes
) -> tuple[str, str]:
    secrets, digest = policy.secrets, policy.digest
    match style:
        case "standard":
            signatures = [_signature(secret, webhook_id, stamp, body, digest) for secret in secrets]
            if policy.private_keys:
                content = _content(webhook_id, stamp, body)
                signatures += [_v1a(signature_of(key, content)) for key in policy.private_keys]
            return "webhook-signature", " ".join(signatures)
        case "github":
            name = "x-hub-signature-256" if digest == "sha256" else "x-hub-signature"
            return name, f"{digest}={_hex(secrets[0], body, digest)}"
        case "stripe":
            content = b"%b.%b" % (stamp.encode(), body)
            signatures = [f"{_SCHEMES[digest]}={_hex(secret, content, digest)}" for secret in secrets]
            return "stripe-signature", ",".join((f"t={stamp}", *signatures))
    assert_never(style)


def _signature(secret: str, webhook_id: str, stamp: str, body: bytes, digest: SignatureDigest = "sha256") -> str:
    mac = _mac(_key(secret), _content(webhook_id, stamp, body), digest)
    return f"{_SCHEMES[digest]},{binascii.b2a_base64(mac, newline=False).decode()}"


def _content(webhook_id: str, stamp: str, body: bytes) -> bytes:
    return b"%b.%b.%b" % (foreign_bytes(webhook_id), stamp.encode(), body)


def _v1a(signature: bytes) -> str:
    return _V1A.decode() + binascii.b2a_base64(signature, newline=False).decode()


def _asymmetric(given: Sequence[bytes]) -> Iterator[bytes]:
    """The decoded `v1a` signatures among `given`."""
    for signature in given:
        if signature.startswith(_V1A):
            with suppress(ValueError):
                yield base64.b64decode(signature.removeprefix(_V1A), validate=True)


def _mac(key: bytes, content: bytes, digest: SignatureDigest) -> bytes:
    mac = _keyed(key, digest).copy()
    mac.update(content)
    return mac.digest()


@lru_cache(maxsize=4096)
def _keyed(key: bytes, digest: SignatureDigest) -> hmac.HMAC:
    """A cached HMAC, copied for each body: keying takes longer than hashing a small body."""
    return hmac.new(key, digestmod=digest)


def _hex(secret: str, content: bytes, digest: SignatureDigest) -> str:
    # verbatim, also with `whsec_`, because receivers that verify these two styles use their secret this way
    return _mac(secret.encode(), content, digest).hex()


@lru_cache(maxsize=1024)
def _key(secret: str) -> bytes:
    if not secret:
        raise ValueError("the secret is empty")
    if not secret.startswith(WHSEC):
        return secret.encode()
    key = _decoded(secret, WHSEC, "secret")
    if not 24 <= len(key) <= 64:
        raise ValueError(f"the secret has {len(key)} bytes after whsec_; 24 to 64 are allowed")
    return key


def foreign_bytes(text: str) -> bytes:
    """The bytes of a text from outside."""
    return text.encode(errors="surrogatepass")  # undecodable bytes must fail the check, not raise


def is_recent(stamp: str, now: float, tolerance_s: float) -> bool:
    """Whether `stamp`, a number of Unix seconds, is within `tolerance_s` of `now`."""
    at = whole_number(stamp)
    return at is not None and abs(now - at) <= tolerance_s
