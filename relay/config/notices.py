"""Settings of notices about incidents: where they go, when, and those of owners."""

from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
from pydantic import SecretStr

from relay.config.entry_types import check_url, checked
from relay.config.setting_values import Secret, listed
from relay.domain.incident_notice import parse_quiet_hours
from relay.domain.times import parse_duration

_SCHEMES: Final = ("smtp://", "smtps://")


class OwnerNotices(msgspec.Struct, forbid_unknown_fields=True):
    """Where an owner gets notices about its receivers. `digest`: seconds, or as `5m`; None: as the operator's."""

    slack_url: str | None = None
    email_to: tuple[str, ...] = ()
    pagerduty_key: str | None = None
    quiet_hours: str | None = None
    digest: str | float | None = None

    @property
    def digest_s(self) -> float | None:
        return None if self.digest is None else parse_duration(self.digest)


_decode_owners: Final = msgspec.json.Decoder(dict[str, OwnerNotices]).decode


def owners_of(value: SecretStr | None) -> dict[str, OwnerNotices]:
    """The owners of the setting. Raises ValueError."""
    return {} if value is None else _owners_in(value.get_secret_value())


def _owners_in(text: str) -> dict[str, OwnerNotices]:
    try:
        owners = _decode_owners(text)
        for one in owners.values():
            _check(one)
    except msgspec.MsgspecError as error:
        raise ValueError(f'not JSON such as {{"team-42": {{"slack_url": "https://..."}}}}: {error}') from None
    return owners


def _check(one: OwnerNotices) -> None:
    if one.slack_url is not None:
        check_url(one.slack_url)
    if one.quiet_hours is not None:
        parse_quiet_hours(one.quiet_hours)
    for address in one.email_to:
        _address(address)
    parse_duration(one.digest or 0)


def _check_smtp(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_valid = url.startswith(_SCHEMES) and bool(parts.hostname) and parts.port != 0
    except ValueError:  # whose text may have a part of the password
        is_valid = False
    if not is_valid:
        raise ValueError("not the URL of an SMTP server; write smtp://[user:password@]host[:port], or smtps:// (TLS)")


def _address(text: str) -> str:
    name, at, host = text.rpartition("@")
    if not (name and at and host) or not text.isprintable() or " " in text:
        raise ValueError(f"{text!r} is not an e-mail address")
    return text


WebhookUrl = Annotated[Secret, checked(check_url)]
SmtpUrl = Annotated[Secret, checked(_check_smtp)]
Addresses = Annotated[tuple[str, ...], listed("e-mail addresses, as ops@example.com", _address)]
Hours = Annotated[str, checked(parse_quiet_hours)]
Owners = Annotated[Secret, checked(_owners_in)]
