"""Entry of receivers.yaml for an endpoint, a receiver's or a callback's, with its TLS, proxy and OAuth 2 settings."""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, Field

from relay.config.entry_types import (
    BreakerEntry,
    Count,
    Entry,
    FieldData,
    FormerSecrets,
    OfflineEntry,
    PositiveDuration,
    RetryEntry,
    Secrets,
    Signature,
    SomeText,
    Text,
    Url,
    check_agreement,
    checked,
    field_check,
    has_only_private_keys,
    unless_reference,
    waits_of,
)
from relay.config.references import check_no_expression, has_reference
from relay.domain.egress import ClientAuth, Egress, OAuth2, ProxyChoice, Tls, proxy_address
from relay.domain.headers import MOST_HEADER, check_header_name, check_header_value
from relay.domain.http_message import HEADERS
from relay.domain.key_material import NO_CERTIFICATES, NO_KEY, check_bits, clean_certificates, clean_private_key
from relay.domain.receiver import RetryPolicy, SignatureDigest, SignatureStyle

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# The certificate library is imported where it is used, because most processes do not need it and it takes memory.

_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_PIN: Final = re.compile(r"sha256/(?:(?P<base64>[A-Za-z0-9+/]{43}=)|(?P<hex>[0-9A-Fa-f]{2}(?::?[0-9A-Fa-f]{2}){31}))")


def _read_certificates(pem: str) -> "list[Certificate]":
    from cryptography import x509

    clean = clean_certificates(pem)
    try:
        return x509.load_pem_x509_certificates(clean.encode())
    except ValueError:
        raise ValueError(NO_CERTIFICATES) from None


def _public_part(pem: str) -> bytes:
    """The public key of a private key, which its certificate must have, too."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    clean = clean_private_key(pem)
    try:
        # the check for primes is skipped: it takes a second at 4,096 bits, and only harms the key's owner
        key = load_pem_private_key(clean.encode(), None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError(NO_KEY) from None
    check_bits(getattr(key, "key_size", 0))
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _public_key_of(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _digest(pin: str) -> bytes:
    match = _PIN.fullmatch(pin)
    try:
        if match is not None and match["base64"]:
            return base64.b64decode(match["base64"], validate=True)
    except binascii.Error:
        match = None
    if match is None:
        raise ValueError(
            "a pin is sha256/ and the SHA-256 of the server's certificate or public key, in base64 or as openssl "
            "prints it (openssl x509 -noout -fingerprint -sha256)"
        )
    return bytes.fromhex(match["hex"].replace(":", ""))


def _check_certificates(value: str) -> None:
    if _PRIVATE_KEY.search(value):
        raise ValueError("contains a private key, which is a secret: it belongs into client_key")
    if not value.isascii():
        raise ValueError("has characters beyond ASCII; leave out any text around the certificates")
    _read_certificates(value)


Certificates = Annotated[Text, Field(max_length=131_072), unless_reference(_check_certificates)]
PrivateKey = Annotated[Text, Field(max_length=16_384), unless_reference(_public_part)]
Pin = Annotated[Text, unless_reference(_digest)]


class TlsEntry(Entry):
    """PEM texts, not file names: other processes, and clients of the API, may not have the files."""

    ca: Certificates | None = None
    """Certificates (PEM) of the only authorities trusted for this endpoint; default: the system's."""
    client_certificate: Certificates | None = None
    """Client certificate of the relay (PEM), with its intermediate certificates."""
    client_key: Annotated[PrivateKey | None, Field(validate_default=True)] = None
    """Private key of the client certificate (PEM), not encrypted."""
    pinned: Annotated[tuple[Pin, ...], Field(strict=False, max_length=16)] = ()
    """Pins, `sha256/...` of the server's certificate or public key, one of which has to match."""

    @field_check("client_key")
    def _fits(cls, key: str | None, data: FieldData) -> None:
        if "client_certificate" not in data:  # it is invalid itself
            return
        certificate = data["client_certificate"]
        if (key is None) != (certificate is None):
            raise ValueError("client_certificate and client_key go together; give both or neither")
        if key is None or has_reference(key) or has_reference(certificate):
            return
        if _public_part(key) != _public_key_of(_read_certificates(certificate)[0]):
            raise ValueError("does not match client_certificate (the first certificate there has to be the client's)")


def check_https(url: str, tls: TlsEntry | None) -> None:
    """Raises ValueError if `tls` cannot apply to `url`."""
    if tls is not None and url.lower().startswith("http:"):
        raise ValueError("plain http has no TLS; write https, or leave tls out")


def tls_of(entry: TlsEntry | None) -> Tls | None:
    """The TLS settings of an entry without references; None if it has none of its own."""
    if entry is None:
        return None
    pinned = tuple(map(_digest, entry.pinned))
    found = Tls(entry.ca, entry.client_certificate, entry.client_key, pinned)
    return None if found == Tls() else found


Word = Annotated[SomeText, Field(max_length=4096)]


class OAuth2Entry(Entry):
    """Client credentials of OAuth 2."""

    token_url: Url
    """URL of the authorization server that issues access tokens."""
    client_id: Word
    """Client id of the relay at that server."""
    client_secret: Word
    """Client secret of the relay at that server; a reference such as `${NAME}`."""
    scope: Word | None = None
    """Requested scope; default: the server's own default."""
    audience: Word | None = None
    """Requested audience, which some servers need."""
    auth: ClientAuth = "basic"
    """How client id and secret are sent: with HTTP Basic authentication, or in the body."""


FILE_ONLY: Final = (("proxy",), ("callback", "proxy"))
"""Fields of receivers and sources that only the receivers file may set: they redirect requests regardless of the URL,
which clients of the API must not do."""


def _proxy_of(written: str | None) -> ProxyChoice | None:
    if written is None:
        return None
    return "none" if written == "none" else proxy_address(written)


Proxy = Annotated[Text, unless_reference(_proxy_of), Field(description="Only in the receivers file.")]


class EgressEntry(Entry):
    """Connection settings of an endpoint; without them, the relay's own settings apply."""

    tls: TlsEntry | None = None
    """TLS settings of this endpoint: authorities, client certificate, pins."""
    proxy: Proxy | None = None
    """Proxy for this endpoint instead of RELAY_EGRESS_PROXY: `http://[user:password@]host[:port]`, or `none`. Only in
    the receivers file."""
    oauth2: OAuth2Entry | None = None
    """OAuth 2 client credentials for an access token, instead of `bearer_token`."""


def egress_of(entry: EgressEntry) -> Egress | None:
    """The connection settings of an entry without references; None if it has none of its own."""
    oauth2 = None if entry.oauth2 is None else OAuth2(**entry.oauth2.model_dump())
    found = Egress(tls_of(entry.tls), _proxy_of(entry.proxy), oauth2)
    return None if found == Egress() else found


def _header_value(value: str) -> str:
    if len(value) > MOST_HEADER:
        raise ValueError(f"a header's value has at most {MOST_HEADER} characters; this one has {len(value)}")
    return check_header_value(value)


HeaderValue = Annotated[Text, checked(check_no_expression), AfterValidator(_header_value)]
HeaderName = Annotated[str, AfterValidator(check_header_name)]


class EndpointEntry(EgressEntry):
    """Settings for POSTs to a receiver's endpoint, or to a source's callback."""

    secret: Secrets = ()
    """Secret that signs requests; a list during rotation, the newest first. `whsec_...`, any text, or `whsk_...` for an
    Ed25519 key."""
    former_secrets: FormerSecrets = ()
    """Replaced secrets that still sign beside the current ones until a given time."""
    signature: Signature = "standard"
    """Style of the signature, or a list of several."""
    signature_digest: SignatureDigest = "sha256"
    """Hash of the signature's HMAC."""
    bearer_token: HeaderValue | None = None
    """Token that is sent as `Authorization: Bearer ...`."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Additional headers of each request."""
    rate_limit: Count | None = None
    """Maximum number of POSTs that start within `window_size`; default: no limit."""
    window_size: PositiveDuration = 1.0
    """Length of the sliding window of `rate_limit`."""
    max_in_flight: Count = 32
    """Maximum number of POSTs in flight at a time."""
    retry: RetryEntry | None = None
    """When failed attempts are repeated, and when the delivery is given up."""
    retry_after: PositiveDuration | None = None
    """Short form of `retry`: a fixed wait before each retry, without jitter."""
    timeout: PositiveDuration = 15.0
    """Maximum duration of a request, from connecting to the end of the response."""
    breaker: BreakerEntry = BreakerEntry()
    """When the relay stops sending to a failing endpoint for a while."""
    offline: OfflineEntry = OfflineEntry()
    """How the relay treats an endpoint with a long outage."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets, newest first."""
        return (self.secret,) if isinstance(self.secret, str) else self.secret

    @property
    def signature_styles(self) -> tuple[SignatureStyle, ...]:
        """The styles that sign, each with a header of its own."""
        if isinstance(self.signature, tuple):
            return self.signature
        return () if self.signature == "none" else (self.signature,)

    def retry_policy(self) -> RetryPolicy:
        """The policy of `retry`, or of its short form."""
        if self.retry_after is not None:
            return RetryPolicy(base=self.retry_after, factor=1.0, cap=self.retry_after, jitter=False)
        return RetryPolicy(**waits_of(self.retry)) if self.retry else RetryPolicy()

    @field_check("former_secrets")
    def _beside_a_present_one(cls, former: FormerSecrets, data: FieldData) -> None:
        if former and secrets_in(data) == ():
            raise ValueError("former secrets sign only beside a current one: give a secret, or leave these out")

    @field_check("signature")
    def _agrees_with_secret(cls, signature: str | tuple[str, ...], data: FieldData) -> None:
        secrets = secrets_in(data)
        if secrets is not None:
            check_agreement((signature,) if isinstance(signature, str) else signature, secrets)

    @field_check("signature_digest")
    def _of_a_signature(cls, digest: str, data: FieldData) -> None:
        secrets = secrets_in(data)
        if data.get("signature") == "none" or secrets == ():
            raise ValueError("there is no signature: it needs a secret, and a style other than 'none'")
        if has_only_private_keys(secrets or ()):
            raise ValueError("applies to an HMAC, but all secrets are private keys (whsk_), which sign without one")
        if digest == "sha512" and "http-message" in styles_in(data):
            raise ValueError("'sha512' contradicts signature: 'http-message' has no HMAC with SHA-512")

    @field_check("bearer_token")
    def _only_credential(cls, token: str | None, data: FieldData) -> None:
        if token is not None and data.get("oauth2") is not None:
            raise ValueError("contradicts oauth2, which sets the same header; leave one of the two out")

    @field_check("headers")
    def _named_once(cls, headers: dict[str, str], data: FieldData) -> None:
        names = [name.lower() for name in headers]
        if len(set(names)) < len(names):
            raise ValueError("a header is given twice; upper and lower case are the same")
        if "authorization" in names and data.get("bearer_token"):
            raise ValueError("'authorization' contradicts bearer_token; leave one of the two out")
        if "authorization" in names and data.get("oauth2") is not None:
            raise ValueError("'authorization' contradicts oauth2; leave one of the two out")
        check_signature_headers(names, data)

    @field_check("retry_after")
    def _excludes_retry(cls, value: float | None, data: FieldData) -> None:
        if value is not None and data.get("retry") is not None:
            raise ValueError("short form of retry; leave one of the two out")


def styles_in(data: FieldData) -> tuple[str, ...]:
    """The signature styles of the entry being validated; none if they are invalid."""
    styles: str | tuple[str, ...] = data.get("signature", ())
    return (styles,) if isinstance(styles, str) else styles


def check_signature_headers(names: Iterable[str], data: FieldData) -> None:
    """Raises ValueError if the signature of the entry being validated sets a header of these names itself."""
    if (both := sorted(HEADERS.intersection(name.lower() for name in names))) and "http-message" in styles_in(data):
        raise ValueError(f"{both[0]!r} contradicts signature: 'http-message' sets it; leave one of the two out")


def secrets_in(data: FieldData) -> tuple[str, ...] | None:
    """The secrets of the entry being validated; None if they are invalid."""
    secret: str | tuple[str, ...] | None = data.get("secret")
    return (secret,) if isinstance(secret, str) else secret
