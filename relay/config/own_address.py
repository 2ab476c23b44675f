"""The API's own address: its URL and host names, and the checks before it is exposed beyond this machine.

Under its URL are answer URLs and payload URLs: their signing secrets, and findings about their configuration. Here are
also the secrets that sign sessions and portal links."""

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from relay.config.references import has_reference
from relay.config.settings import Settings
from relay.domain.answer_token import issue, issue_for_payload
from relay.domain.api_key import id_of
from relay.domain.errors import UserError
from relay.domain.identity import DeliveryId
from relay.domain.jwe import private_keys
from relay.domain.session import derived_secret

SHORTEST_KEY: Final = 16
"""Characters. 16 random ones cannot be guessed over a network; short words can within minutes."""
_EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  listening address -> address to connect to


def is_loopback(host: str) -> bool:
    """Whether a host, as in a setting or a Host header (without brackets), is a loopback address or `localhost`.

    Other names are not resolved: they could lead to any machine.
    """
    name = host.rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def own_url(host: str, port: int) -> str:
    """The URL at which this machine reaches a server that listens on `host` and `port`."""
    reached = _EVERY_ADDRESS.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def own_names(settings: Settings) -> tuple[str, ...]:
    """Host names that the API accepts in a Host header, beside loopback: see RELAY_ALLOWED_HOSTS."""
    listening = () if settings.api_host in _EVERY_ADDRESS else (settings.api_host.lower(),)
    return (*settings.allowed_hosts, *listening)


class Exposed(UserError):
    """Other machines could use the API without a key, unless an API key was created."""


def may_be_open(settings: Settings) -> bool:
    """Whether the API may be served without any key."""
    return settings.api_insecure or is_loopback(settings.api_host)


def check_exposure(settings: Settings) -> None:
    """Raises Exposed if other machines can reach the API and the settings have no key for it."""
    if settings.api_key is None and not may_be_open(settings):
        raise Exposed(
            f"RELAY_API_HOST: {settings.api_host} can be reached from outside, RELAY_API_KEY is not set, and no API key"
            " was created (relay keys create): anyone could send and read messages; set RELAY_API_KEY"
            " (or RELAY_API_INSECURE=true to allow this)"
        )


def check_key(settings: Settings) -> None:
    """Raises UserError if RELAY_API_KEY could be guessed, or is a created API key."""
    check_own_key(settings)
    if settings.api_key is not None and len(settings.api_key.get_secret_value()) < SHORTEST_KEY:
        raise UserError(
            f"RELAY_API_KEY: shorter than {SHORTEST_KEY} characters, so it could be guessed;"
            " make one with: openssl rand -hex 32"
        )


def check_own_key(settings: Settings) -> None:
    """Raises UserError if RELAY_API_KEY is a created API key: that is valid anyway, with its own scopes, and here it
    would have all permissions."""
    if settings.api_key is not None and id_of(settings.api_key.get_secret_value()) is not None:
        raise UserError(
            "RELAY_API_KEY: is a key that was created with `relay keys create`. Commands may use it to call the API,"
            " but a process of the relay would give it all permissions: unset it here, or set another one"
        )


SHORTEST_SECRET: Final = 16
"""Characters. Anybody with an answer URL can test guesses offline."""
_NAMED: Final = 5


def answer_secrets(settings: Settings) -> tuple[bytes, ...]:
    """The keys that sign and verify tokens, the signing one first; empty without RELAY_ANSWER_SECRET.

    They are derived from no other secret, and never from the API key: receivers have the tokens, and could test guesses
    of the key offline.
    """
    return tuple(
        hashlib.sha256(b"answers\0" + each.get_secret_value().encode()).digest() for each in settings.answer_secret
    )


def answer_keys(settings: Settings) -> tuple[str, ...]:
    """The private keys that decrypt answers."""
    return () if settings.answer_jwk is None else private_keys(settings.answer_jwk.get_secret_value())


@dataclass(frozen=True, slots=True)
class AnswerUrls:
    """Makes answer URLs and payload URLs. `base`: the API's URL; None if not configured."""

    secrets: Sequence[bytes] = field(repr=False)
    base: str | None

    def of(self, delivery: DeliveryId, generation: int, expires: int) -> str | None:
        """The answer URL of a delivery; None if answer URLs are off. `expires`: Unix seconds."""
        if self.base is None or not self.secrets:
            return None
        return f"{self.base}/v1/answers/{issue(self.secrets[0], delivery, generation, expires)}"

    def of_payload(self, delivery: DeliveryId, life: str, expires: int) -> str | None:
        """The URL of a delivery's payload, likewise. `life`: of the receiver's name."""
        if self.base is None or not self.secrets:
            return None
        return f"{self.base}/v1/payloads/{issue_for_payload(self.secrets[0], delivery, life, expires)}"


class AnsweringReceiver(NamedTuple):
    """Properties of a receiver that matter here. `asked`: its status endpoint can be polled for the answer. `thin`: it
    gets a URL in place of the payload."""

    endpoint: str
    asked: bool
    thin: bool = False


class AnswerUrlFinding(NamedTuple):
    """A problem, and the names of the affected receivers."""

    problem: str
    receivers: tuple[str, ...]

    def __str__(self) -> str:
        if not self.receivers:
            return self.problem
        more = len(self.receivers) - _NAMED
        return f"{self.problem}: {', '.join(self.receivers[:_NAMED])}{f' and {more} more' if more > 0 else ''}"


def findings(
    settings: Settings, urls: AnswerUrls, receivers: Mapping[str, AnsweringReceiver], *, sends: bool = True
) -> list[AnswerUrlFinding]:
    """Problems for a process that sends `relay-answer-url` (`sends`), or else only those of the secrets."""
    found = []
    if not urls.secrets:
        problem = "relay-answer-url is off: RELAY_ANSWER_SECRET is not set (make one with: openssl rand -hex 32)"
        found.append(_off(problem, receivers))
    elif sends and urls.base is None:
        problem = "relay-answer-url is off: this process does not serve the API, and RELAY_PUBLIC_URL is not set"
        found.append(_off(problem, receivers))
    elif sends and urls.base is not None and _is_local(urls.base):
        elsewhere = tuple(sorted(name for name, one in receivers.items() if not _is_local(one.endpoint)))
        if elsewhere:
            problem = f"relay-answer-url leads to {urls.base}, which only this machine can reach; set RELAY_PUBLIC_URL"
            found.append(AnswerUrlFinding(f"{problem} to a URL that these receivers can reach", elsewhere))
    if sends and (not urls.secrets or urls.base is None):
        thin = tuple(sorted(name for name, one in receivers.items() if one.thin))
        problem = "no payload URL can be made without it, so messages to these receivers (payload: thin) wait"
        found += [AnswerUrlFinding(problem, thin)] if thin else []
    if any(len(each.get_secret_value()) < SHORTEST_SECRET for each in settings.answer_secret):
        problem = (
            f"RELAY_ANSWER_SECRET is shorter than {SHORTEST_SECRET} characters, so it can be guessed; put a new one"
            " before it (make one with: openssl rand -hex 32), and remove it once the answer URLs of before are over"
        )
        found.append(AnswerUrlFinding(problem, ()))
    return found


def _off(problem: str, receivers: Mapping[str, AnsweringReceiver]) -> AnswerUrlFinding:
    mute = tuple(sorted(name for name, one in receivers.items() if not one.asked))
    return AnswerUrlFinding(
        f"{problem}; without it, these receivers cannot answer after a 202" if mute else problem, mute
    )


def _is_local(url: str) -> bool:
    """Whether the URL is on this machine, or may be because its host is a reference."""
    try:
        parts = urlsplit(url)
        return (has_reference(url) and "$" in (parts.netloc or "$")) or is_loopback(parts.hostname or "")
    except ValueError:
        return False


_BYTES: Final = 32
_NAME: Final = "session_secret"
_LABEL: Final = b"relay sessions 1"


def session_secrets(settings: Settings, answer_secrets: Sequence[bytes], launch: bytes) -> tuple[bytes, ...]:
    """The keys that sign and verify tokens, the signing one first. `launch`: used if no secret is set; tokens are then
    valid only on this machine, until the relay restarts."""
    given = settings.session_secret
    if given:
        return tuple(derived_secret(each.get_secret_value().encode(), _LABEL) for each in given)
    return tuple(derived_secret(each, _LABEL) for each in answer_secrets) or (launch,)


def keep_launch_secret(directory: Path) -> None:
    """Write a secret for processes that are started together. `directory`: readable by this user only."""
    with open(os.open(directory / _NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(_BYTES))


def launch_secret(directory: Path | None) -> bytes:
    """The secret in `directory`, or else a new one for this process alone."""
    with suppress(FileNotFoundError):
        kept = b"" if directory is None else (directory / _NAME).read_bytes()
        if len(kept) == _BYTES:
            return kept
    return secrets.token_bytes(_BYTES)
