"""Size checks of untrusted certificates and private keys (PEM), before a cryptography library reads them. Pure.

The time such a library takes grows with the third power of the key length: checking an RSA key of 12,287 bits took 40 s
and blocked the process. So this module first reads the length of each number, without arithmetic on it.
"""

import base64
import binascii
from collections.abc import Iterator
from typing import Final, NamedTuple

MOST_BITS: Final = 4_096
"""Of a number in a key or a certificate: the modulus of RSA is the longest."""
MOST_CERTIFICATES: Final = 64
"""Of one field."""

NO_CERTIFICATES: Final = (
    "not certificates in PEM; write the text from -----BEGIN CERTIFICATE----- to the last -----END CERTIFICATE-----, "
    "not the name of a file"
)
NO_KEY: Final = "not a private key in PEM; write its text, not the name of a file"
ENCRYPTED: Final = "is encrypted with a passphrase; decrypt it (openssl pkey -in KEY)"

_CERTIFICATES: Final = frozenset({"CERTIFICATE", "X509 CERTIFICATE"})
_PRIVATE_KEY: Final = "PRIVATE KEY"
_BEGIN, _END, _DASHES = "-----BEGIN ", "-----END ", "-----"
_LINE: Final = 64
_INTEGER, _BIT_STRING, _OCTET_STRING, _SEQUENCE, _CONSTRUCTED, _LONG_TAG = 0x02, 0x03, 0x04, 0x30, 0x20, 0x1F


class _Block(NamedTuple):
    """`body`: base64, after the headers of legacy PEM encryption, if any."""

    label: str
    body: str


class _DerSpan(NamedTuple):
    start: int
    end: int
    is_guess: bool
    """A string that may contain nested DER, or not."""


def clean_certificates(pem: str) -> str:
    """The same certificates, without surrounding text. Raises ValueError."""
    blocks = [block for block in _blocks(pem, NO_CERTIFICATES) if block.label in _CERTIFICATES]
    if not blocks:
        raise ValueError(NO_CERTIFICATES)
    if len(blocks) > MOST_CERTIFICATES:
        raise ValueError(f"has {len(blocks)} certificates; at most {MOST_CERTIFICATES} are allowed")
    return "".join(_clean(block, NO_CERTIFICATES) for block in blocks)


def clean_private_key(pem: str) -> str:
    """The same key, without surrounding text. Raises ValueError."""
    blocks = [block for block in _blocks(pem, NO_KEY) if block.label.endswith(_PRIVATE_KEY)]
    if len(blocks) != 1:
        raise ValueError(f"has {len(blocks)} private keys; write one" if blocks else NO_KEY)
    [block] = blocks
    if "ENCRYPTED" in block.label or "ENCRYPTED" in block.body:
        raise ValueError(ENCRYPTED)
    return _clean(block, NO_KEY)


def check_bits(bits: int) -> None:
    """Raises ValueError for a key that is too long."""
    if bits > MOST_BITS:
        raise ValueError(f"has a key of {bits} bits; at most {MOST_BITS} are allowed")


def _blocks(pem: str, wrong: str) -> Iterator[_Block]:
    """The PEM blocks between BEGIN and END lines. Raises ValueError with `wrong`."""
    label, body = None, list[str]()
    for line in map(str.strip, pem.splitlines()):
        if line.startswith(_BEGIN) and line.endswith(_DASHES) and label is None:
            label = line[len(_BEGIN) : -len(_DASHES)]
        elif label is not None and line == f"{_END}{label}{_DASHES}":
            yield _Block(label, "\n".join(body))
            label, body = None, []
        elif line.startswith((_BEGIN, _END)):
            raise ValueError(wrong)
        elif label is not None:
            body.append(line)
    if label is not None:
        raise ValueError(wrong)


def _clean(block: _Block, wrong: str) -> str:
    try:
        der = base64.b64decode("".join(block.body.split()), validate=True)
        longest = max(_lengths(der), default=0)
    except (binascii.Error, ValueError, IndexError):
        raise ValueError(wrong) from None
    check_bits(longest)
    text = base64.b64encode(der).decode()
    lines = (text[at : at + _LINE] for at in range(0, len(text), _LINE))
    return "\n".join((f"{_BEGIN}{block.label}{_DASHES}", *lines, f"{_END}{block.label}{_DASHES}", ""))


def _lengths(der: bytes) -> Iterator[int]:
    """Bits of each integer in `der`, including those in strings that contain DER, as in PKCS #8. Raises ValueError or
    IndexError for invalid DER, such as indefinite lengths."""
    spans = [_DerSpan(0, len(der), is_guess=False)]
    while spans:
        at, end, is_guess = spans.pop()
        try:
            while at < end:
                tag, start, following = _head(der, at, end)
                if tag == _INTEGER:
                    first = der[start : min(start + 2, following)]
                    yield int.from_bytes(first).bit_length() + 8 * (following - start - len(first))
                elif tag & _CONSTRUCTED:
                    spans.append(_DerSpan(start, following, is_guess))
                elif tag in (_BIT_STRING, _OCTET_STRING):
                    start += tag == _BIT_STRING  # the first byte counts the unused bits
                    if start < following and der[start] == _SEQUENCE:
                        spans.append(_DerSpan(start, following, is_guess=True))
                at = following
        except (ValueError, IndexError):
            if not is_guess:
                raise


def _head(der: bytes, at: int, end: int) -> tuple[int, int, int]:
    """(tag, start of its content, end of its content) at offset `at`."""
    tag, length, start = der[at], der[at + 1], at + 2
    if tag & _LONG_TAG == _LONG_TAG:
        raise ValueError("a tag with more than one byte")
    if length >= 0x80:
        size = length & 0x7F
        if not 0 < size <= 4:
            raise ValueError("an indefinite length, or one of gigabytes")
        length, start = int.from_bytes(der[start : start + size]), start + size
    if start + length > end:
        raise ValueError("an element that is longer than its parent")
    return tag, start, start + length
