"""Answer URLs: the secrets that sign them, where they lead, and in words for people what is off about them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from relay.config.own_address import is_loopback
from relay.config.references import has_reference
from relay.config.settings import Settings
from relay.domain.answer_token import issue
from relay.domain.identity import DeliveryId

SHORTEST_SECRET: Final = 16
"""Characters. Whoever has an answer URL can try secrets on it as fast as a computer can."""
_NAMED: Final = 5


def answer_secrets(settings: Settings) -> tuple[bytes, ...]:
    """The keys that sign and prove tokens, the one that signs first; empty without RELAY_ANSWER_SECRET.

    Of nothing else, and of the API's key least of all: a token is known to receivers, and a key that it was signed with
    could be tried on it, by anybody, at home.
    """
    return tuple(
        hashlib.sha256(b"answers\0" + each.get_secret_value().encode()).digest() for each in settings.answer_secret
    )


@dataclass(frozen=True, slots=True)
class AnswerUrls:
    """What makes them. `base` None: nobody has said where the API is."""

    secrets: Sequence[bytes] = field(repr=False)
    base: str | None

    def of(self, delivery: DeliveryId, generation: int, expires: int) -> str | None:
        """`expires`: Unix seconds. None: they are off."""
        if self.base is None or not self.secrets:
            return None
        return f"{self.base}/v1/answers/{issue(self.secrets[0], delivery, generation, expires)}"


class AnsweringReceiver(NamedTuple):
    """What matters of a receiver: where it is, and whether it can be asked for its answer."""

    endpoint: str
    asked: bool


class AnswerUrlFinding(NamedTuple):
    """What is off, and the names of the receivers that it matters to."""

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
    """What is off for a process that sends `relay-answer-url`; for one that does not, what is about the secrets."""
    found = []
    if not urls.secrets:
        problem = "relay-answer-url is off, for RELAY_ANSWER_SECRET is not set (make one with: openssl rand -hex 32)"
        found.append(_off(problem, receivers))
    elif sends and urls.base is None:
        problem = "relay-answer-url is off, for this process does not serve the API, and RELAY_PUBLIC_URL is not set"
        found.append(_off(problem, receivers))
    elif sends and urls.base is not None and _is_local(urls.base):
        elsewhere = tuple(sorted(name for name, one in receivers.items() if not _is_local(one.endpoint)))
        if elsewhere:
            problem = f"relay-answer-url leads to {urls.base}, which only this machine reaches; set RELAY_PUBLIC_URL to"
            found.append(AnswerUrlFinding(f"{problem} where these receivers reach the API", elsewhere))
    if any(len(each.get_secret_value()) < SHORTEST_SECRET for each in settings.answer_secret):
        found.append(
            AnswerUrlFinding(f"RELAY_ANSWER_SECRET is shorter than {SHORTEST_SECRET} characters: it can be guessed", ())
        )
    return found


def _off(problem: str, receivers: Mapping[str, AnsweringReceiver]) -> AnswerUrlFinding:
    mute = tuple(sorted(name for name, one in receivers.items() if not one.asked))
    return AnswerUrlFinding(
        f"{problem}; without it nothing brings the answer after a 202 of" if mute else problem, mute
    )


def _is_local(url: str) -> bool:
    """Whether this machine is meant; also of a URL whose host is a reference, so that nobody can know."""
    try:
        parts = urlsplit(url)
        return (has_reference(url) and "$" in (parts.netloc or "$")) or is_loopback(parts.hostname or "")
    except ValueError:
        return False
