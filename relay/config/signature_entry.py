"""What may be written in receivers.yaml about signatures of what is sent: the secrets, and the styles that use them."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, Tag

from relay.config.entry import TEXT_OR_LIST, Entry, Text
from relay.config.references import has_reference
from relay.config.timestamps import Moment
from relay.domain.ed25519 import is_private_key
from relay.domain.receiver import SignatureStyle
from relay.domain.signing import check_secret


def _secret(value: str) -> str:
    if not has_reference(value):
        check_secret(value)
    return value


MAX_SECRETS: Final = 16
"""Each signs, or is tried, on its own."""
MAX_SECRET: Final = 4_096
Secret = Annotated[Text, Field(max_length=MAX_SECRET), AfterValidator(_secret)]
Secrets = Annotated[
    Annotated[Secret, Tag("(text)")]
    | Annotated[tuple[Secret, ...], Field(strict=False, max_length=MAX_SECRETS), Tag("(list)")],
    TEXT_OR_LIST,
]
MAX_FORMER: Final = 3


class FormerSecretEntry(Entry):
    """A secret that was replaced: it signs along until that moment."""

    secret: Secret
    """The replaced secret."""
    until: Moment
    """When it stops signing (RFC 3339)."""


FormerSecrets = Annotated[tuple[FormerSecretEntry, ...], Field(strict=False, max_length=MAX_FORMER)]
Signature = Annotated[
    Annotated[Literal["standard", "github", "stripe", "none"], Tag("(text)")]
    | Annotated[tuple[SignatureStyle, ...], Field(strict=False, min_length=1), Tag("(list)")],
    TEXT_OR_LIST,
]


def check_agreement(styles: tuple[str, ...], secrets: tuple[str, ...]) -> None:
    """Raises ValueError unless each of `styles` can sign with `secrets`, and each secret is of use."""
    for style in styles:
        if styles.count(style) > 1:
            raise ValueError(f"{style!r} is listed twice: it would sign one header twice")
        if style != "none" and not secrets:
            raise ValueError(f"{style!r} needs a secret to sign with")
        if style == "none" and secrets:
            raise ValueError("'none' contradicts the secret; leave one of the two out")
        if style != "standard" and has_only_private_keys(secrets):
            raise ValueError(f"{style!r} signs with an HMAC: it needs a secret that is no private key (whsk_)")
    if "standard" not in styles and any(map(is_private_key, secrets)):
        raise ValueError("a private key (whsk_) signs in the style 'standard' alone; list that, or leave the key out")


def has_only_private_keys(secrets: tuple[str, ...]) -> bool:
    """Whether there is none that an HMAC could use."""
    return bool(secrets) and all(map(is_private_key, secrets))
