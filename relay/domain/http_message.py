"""HTTP message signatures (RFC 9421) over the relay's requests, with a digest of the body (RFC 9530): the style
`http-message`.

An HMAC secret signs with `hmac-sha256`, an Ed25519 key with `ed25519`; during a rotation each one has a label of its
own.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypedDict
from urllib.parse import urlsplit

from relay.domain.identity import base64url
from relay.domain.receiver import SigningPolicy
from relay.domain.signing import (
    PUBLIC,
    foreign_bytes,
    is_public_key,
    is_recent,
    is_signature,
    keyed_sha256,
    public_key,
    signature_of,
    with_former,
)
from relay.domain.urls import authority_of

Pairs = tuple[tuple[str, str], ...]


class PublicJwk(TypedDict):
    """An Ed25519 key as JWK (RFC 8037). `kid`: its thumbprint, which signatures name."""

    kty: str
    crv: str
    x: str
    kid: str
    use: str
    alg: str


HEADERS: Final = frozenset({"content-digest", "signature", "signature-input"})
"""Headers of such a signature, which no other setting may set."""

TAG: Final = "webhook"
"""Says what the signature is for; a proxy may add another one."""

# The scheme is left out, because a proxy in front of the receiver may end TLS.
_DERIVED: Final = ("@method", "@authority", "@path", "@query")
_REQUIRED: Final = frozenset({*_DERIVED, "content-digest", "webhook-id"})
_INPUT: Final = re.compile(
    r'([a-z][a-z0-9_-]*)=(\(("[^"]*"(?: "[^"]*")*)\)((?:;[a-z]+=(?:\d{1,15}|"[^"]*"))*))(?:, ?|$)'
)
_PARAMETER: Final = re.compile(r';([a-z]+)=(?:"([^"]*)"|(\d+))')
_VALUE: Final = re.compile(r"([a-z][a-z0-9_-]*)=:([A-Za-z0-9+/=]*):(?:, ?|$)")
_MOST_HEADER: Final = 32 * 1024
"""Characters of a header that is verified; 19 secrets make about 6,000."""


def sign_message(policy: SigningPolicy, *, method: str, url: str, fields: Pairs, body: bytes, created: int) -> Pairs:
    """`content-digest`, `signature-input` and `signature`; nothing without a secret. `fields`: the headers that are
    covered beside the digest. `created`: Unix seconds. Raises ValueError for a secret that cannot sign."""
    policy = with_former(policy, created)
    keys = [*policy.secrets, *policy.private_keys]
    if not keys:
        return ()
    covered = _covered(method, url, (("content-digest", content_digest(body)), *fields))
    names = " ".join(f'"{name}"' for name, _ in covered)
    inputs, signatures = [], []
    for at, secret in enumerate(keys):
        private = at >= len(policy.secrets)
        alg, key_id = ("ed25519", thumbprint(public_key(secret))) if private else ("hmac-sha256", secret_id(secret))
        parameters = f'({names});created={created};keyid="{key_id}";alg="{alg}";tag="{TAG}"'
        base = _base(covered, parameters)
        signature = signature_of(secret, base) if private else keyed_sha256(secret, base)
        inputs.append(f"sig{at + 1}={parameters}")
        signatures.append(f"sig{at + 1}=:{_base64(signature)}:")
    return (
        ("content-digest", content_digest(body)),
        ("signature-input", ", ".join(inputs)),
        ("signature", ", ".join(signatures)),
    )


def content_digest(body: bytes) -> str:
    return f"sha-256=:{_base64(hashlib.sha256(body).digest())}:"


@lru_cache(maxsize=1024)
def secret_id(secret: str) -> str:
    """`keyid` of an HMAC secret: which one of several signed, for a receiver that has them. Raises ValueError."""
    return keyed_sha256(secret, b"keyid").hex()[:16]


@lru_cache(maxsize=1024)
def thumbprint(key: str) -> str:
    """`keyid` of a public key (`whpk_`), and `kid` in the relay's JWK Set: its thumbprint (RFC 7638)."""
    members = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": _coordinate(key)}, separators=(",", ":"))
    return base64url(hashlib.sha256(members.encode()).digest())


def public_jwk(key: str) -> PublicJwk:
    """A public key (`whpk_`) as JWK (RFC 8037)."""
    return {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": _coordinate(key),
        "kid": thumbprint(key),
        "use": "sig",
        "alg": "EdDSA",
    }


def verify_message(
    secrets: Sequence[str],
    *,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    now: float,
    tolerance_s: float = 300,
) -> bool:
    """Whether one of `secrets` (or public keys, `whpk_`) signed the request within `tolerance_s` of `now`, with all
    that the relay covers. `url`: as it was requested. Raises ValueError for an invalid secret."""
    named = {name.lower(): value for name, value in headers.items()}
    given = named.get("signature-input", ""), named.get("signature", "")
    digest = foreign_bytes(named.get("content-digest", ""))
    if max(map(len, given)) > _MOST_HEADER or not hmac.compare_digest(digest, content_digest(body).encode()):
        return False
    try:
        derived = dict(_covered(method, url, ()))
    except ValueError:  # of a malformed Host header
        return False
    values = {found[0]: found[1] for found in _members(_VALUE, given[1])}
    for label, parameters, names, rest in _members(_INPUT, given[0]):
        found = _Given.of(parameters, names, rest, values.get(label, ""))
        if found is None or not (_REQUIRED.issubset(found.names) and is_recent(found.created, now, tolerance_s)):
            continue
        covered = [(name, derived[name] if name in derived else named.get(name, "")) for name in found.names]
        base = _base(covered, found.parameters)
        if any(_is_by(secret, found, base) for secret in secrets):
            return True
    return False


def _members(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, ...]]:
    """The groups of each member of a dictionary (RFC 8941), up to the first that is another one."""
    at = 0
    while (found := pattern.match(text, at)) is not None and found.end() > at:
        yield found.groups("")
        at = found.end()


class _Given(NamedTuple):
    """A signature as received. `parameters`: the text that is covered."""

    parameters: str
    names: list[str]
    created: str
    alg: str
    signature: bytes

    @classmethod
    def of(cls, parameters: str, names: str, rest: str, signature: str) -> "_Given | None":
        known = {name: text or number for name, text, number in _PARAMETER.findall(rest)}
        try:
            raw = base64.b64decode(signature, validate=True)
        except binascii.Error:
            return None
        listed = [name.strip('"') for name in names.split(" ")]
        return cls(parameters, listed, known.get("created", ""), known.get("alg", ""), raw)


def _is_by(secret: str, given: _Given, base: bytes) -> bool:
    # the kind of the secret decides, not `alg`: a public key must never serve as the secret of an HMAC
    if is_public_key(secret):
        return given.alg == "ed25519" and is_signature(secret, given.signature, base)
    return given.alg == "hmac-sha256" and hmac.compare_digest(keyed_sha256(secret, base), given.signature)


def _covered(method: str, url: str, fields: Pairs) -> Pairs:
    parts = urlsplit(url)
    host = parts.hostname or ""
    authority = authority_of(parts.scheme, f"[{host}]" if ":" in host else host, parts.port)
    derived = (method, authority, parts.path or "/", f"?{parts.query}")
    return (*zip(_DERIVED, derived, strict=True), *fields)


def _base(covered: Sequence[tuple[str, str]], parameters: str) -> bytes:
    """RFC 9421, 2.5."""
    lines = [f'"{name}": {value.strip()}' for name, value in (*covered, ("@signature-params", parameters))]
    return foreign_bytes("\n".join(lines))


def _coordinate(key: str) -> str:
    return base64url(base64.b64decode(key.removeprefix(PUBLIC)))


def _base64(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode()
