"""Handling of foreign text takes time in proportion to its length, whatever it is; the stored part is bounded and
masked."""

import importlib
import inspect
import pkgutil
import re
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from types import FrameType
from typing import Any, Final

import pytest

import relay
from relay.api.body import read_json
from relay.api.incoming import idempotency_key
from relay.config.entry_types import check_url
from relay.config.redacted_entry import field_changes
from relay.config.references import check_references, has_reference, is_public, references_in, with_references_replaced
from relay.delivery.http1 import MOST_HEADERS, ResponseReader
from relay.domain import headers, shown_exchange
from relay.domain.coordinate import parse_coordinate
from relay.domain.exchange import Response
from relay.domain.headers import MOST_HEADER, MOST_URL, check_header_value
from relay.domain.key_material import clean_certificates, clean_private_key
from relay.domain.receiver import Endpoint
from relay.domain.schedule import parse_retry_after, requested_wait
from relay.domain.secrecy import MASK, is_secret_name, looks_random, masked_url, redacted
from relay.domain.shown_exchange import failure_detail, shown_response_headers, shown_url
from relay.domain.status import check_template
from relay.domain.times import parse_duration
from relay.domain.trace import parse_traceparent
from relay.domain.urls import location_url, malformed
from relay.schema.access import WantedKey
from relay.telemetry.redaction import escape_control, escape_in_json, public_url
from tests.patterns import retries

pytestmark = pytest.mark.thorough

HERE: Final = Endpoint("https://ci.example/hooks", secrets=("s3cret-token",))
SIZE: Final = 32 * 1024
MOST_CPU_S: Final = 5.0
"""Far more than any of them takes; quadratic ones take 15 s and more."""

PIECES: Final = (
    "a", "/", "?", "&", "=", "${", "${enc:", "${file:", "{", "}", " ", "\t", "://", "[", "]", "@", "%", "%41", "a1",
    "a.", "a-", ":", "#", '"', "'", "\\", "`", "\x00", "\u202e", "é", ";", ",", "0", "0.", "~", "\r\n", "?a=b&", "-",
    "-----BEGIN PRIVATE KEY-----\n", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", "0\x82\x10",
)  # fmt: skip
BEGINNINGS: Final = ("", "https://h/?", "https://", "https://h/", "${x}", '"')
FUNCTIONS: Final[tuple[Callable[[str], object], ...]] = (
    masked_url,
    is_secret_name,
    looks_random,
    lambda text: redacted(text, ("s3cret-token", "${x}")),
    lambda text: shown_url(text, HERE),
    lambda text: shown_response_headers({"location": text, text: text, "x": f"://{text}"}, HERE),
    lambda text: failure_detail(Response(302, {"location": text}, text.encode(errors="replace")), HERE),
    lambda text: location_url("https://ci.example/hooks", text),
    lambda text: parse_retry_after(text, 0.0),
    lambda text: requested_wait({"ratelimit-remaining": "0", "ratelimit-reset": text}, 0.0),
    has_reference,
    is_public,
    check_references,
    lambda text: list(references_in({"a": text})),
    lambda text: with_references_replaced(text, lambda name: name),
    lambda text: field_changes({"headers": {"a": text}}, {"headers": {"a": "", "b": text}, "url": text}),
    check_url,
    malformed,
    check_template,
    check_header_value,
    parse_duration,
    parse_coordinate,
    parse_traceparent,
    clean_private_key,
    clean_certificates,
    lambda text: clean_private_key(_pem(text)),
    idempotency_key,
    public_url,
    escape_control,
    escape_in_json,
    lambda text: read_json(text.encode(errors="replace"), WantedKey),
    lambda text: read_json(b'{" - at `$%s": 1}' % text.replace('"', "").encode(errors="replace"), WantedKey),
    lambda text: received(b"X: " + text.encode(errors="replace") + b"\r\n"),
)
FOREIGN: Final = ("domain", "config", "api", "delivery", "telemetry")
SEARCHES: Final = r"\.(search|sub|subn|findall|finditer|split)\("
NOT_FOREIGN: Final = {
    "relay.delivery.connection._REFUSED_US",  # the TLS library's own words
    "relay.api.openapi.document._CODE",  # our own docstrings
    "relay.domain.secrecy._URL",  # matches any text, so that nothing is tried twice
}


def _pem(text: str) -> str:
    body = b64encode(text.encode(errors="replace")).decode()
    return f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"


def received(headers: bytes) -> object:
    return ResponseReader(100).feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + headers + b"\r\n")


class _TooLong(BaseException):
    pass


def _enough(_signal: int, _frame: FrameType | None) -> None:
    raise _TooLong("more CPU than anything linear takes")


def read_once(function: Callable[[str], object], most_cpu_s: float = MOST_CPU_S) -> None:
    """Raises _TooLong where some shape takes more than that."""
    former = signal.signal(signal.SIGVTALRM, _enough)
    signal.setitimer(signal.ITIMER_VIRTUAL, most_cpu_s)
    try:
        for text in shapes(SIZE):
            with suppress(Exception):
                function(text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


@pytest.mark.parametrize("place", range(len(FUNCTIONS)))
def test_32_kib_of_any_shape_are_read_once(place: int) -> None:
    read_once(FUNCTIONS[place])


@pytest.mark.parametrize("pattern", [r"\$\{([^}]*)\}", r"([^?&#=]*)=([^&#]*)", r"(a+)*b"])
def test_a_planted_quadratic_pattern_is_found(pattern: str) -> None:
    with pytest.raises(_TooLong):
        read_once(re.compile(pattern).findall, most_cpu_s=0.5)


def shapes(size: int) -> Iterator[str]:
    for beginning in BEGINNINGS:
        for piece in PIECES:
            yield beginning + (piece * size)[: size - len(beginning)]


def patterns() -> Iterator[tuple[str, re.Pattern[Any], bool]]:
    """Each pattern of the modules that read what others say, and whether it is tried at each place of a text."""
    for folder in FOREIGN:
        package = importlib.import_module(f"relay.{folder}")
        for found in pkgutil.walk_packages(package.__path__, f"relay.{folder}."):
            module = importlib.import_module(found.name)
            source = inspect.getsource(module)
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern):
                    yield f"{found.name}.{name}", value, re.search(rf"\b{name}{SEARCHES}", source) is not None


def test_no_pattern_for_what_others_say_reads_it_again_and_again() -> None:
    assert relay
    assert {
        name: why
        for name, pattern, searched in patterns()
        if (why := retries(pattern, searched=searched)) is not None and name not in NOT_FOREIGN
    } == {}


@pytest.mark.parametrize(
    ("pattern", "searched"),
    [
        (r"\$\{([^}]*)\}", True),
        (r"([^?&#=]*)=([^&#]*)", True),
        (r"\[([^\]]*)\]", True),
        (r"\s*(Basic|Bearer)?\s*", False),
        (r"(a+)*b", False),
        (r"([a-z]+-?)*", False),
    ],
)
def test_a_pattern_that_does_is_found(pattern: str, searched: bool) -> None:
    assert retries(re.compile(pattern), searched=searched) is not None


def test_so_is_one_in_a_module_that_reads_what_others_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_PLANTED", re.compile(r"(a+)*b"), raising=False)
    with pytest.raises(AssertionError, match=r"relay\.domain\.headers\._PLANTED"):
        test_no_pattern_for_what_others_say_reads_it_again_and_again()


@pytest.mark.parametrize("rounds", [pytest.param(2_000, id="2k"), pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_masking_hides_what_is_planted_in_any_text(rounds: int) -> None:
    chance = Random(27)
    for _ in range(rounds):
        noise = "".join(chance.choices(PIECES, k=chance.randrange(12)))
        planted = f"{noise}s3cret-token{''.join(chance.choices(PIECES, k=3))}"
        assert "s3cret-token" not in redacted(planted, HERE.secrets)
        query = f"https://h/p?{noise.replace('#', '')}&token=hunter22&x=1"
        assert "hunter22" not in masked_url(query), query
        kept = shown_response_headers({"location": query, "set-cookie": planted, "x": planted}, HERE)
        assert kept["set-cookie"] == MASK
        assert not any("hunter22" in value or "s3cret-token" in value for value in kept.values()), query


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("_known_secrets", lambda _names, _settings: frozenset()),
        ("_masked", lambda url: url),
        ("redacted", lambda text, _secrets: text),
    ],
)
def test_a_header_that_is_not_masked_is_found(monkeypatch: pytest.MonkeyPatch, name: str, planted: object) -> None:
    monkeypatch.setattr(shown_exchange, name, planted)
    with pytest.raises(AssertionError):
        test_masking_hides_what_is_planted_in_any_text(1_000)


@pytest.mark.parametrize("rounds", [pytest.param(2_000, id="2k"), pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_parsers_take_any_text_and_references_are_what_a_plain_pattern_finds(rounds: int) -> None:
    chance, plain = Random(28), re.compile(r"\$\{([^}]*)\}")
    for _ in range(rounds):
        text = "".join(chance.choices(PIECES, k=chance.randrange(16)))
        assert [name for _, name in references_in(text)] == plain.findall(text)
        assert with_references_replaced(text, lambda _: "-") == plain.sub("-", text)
        FUNCTIONS[chance.randrange(3)](text)
        location_url("https://ci.example/hooks", text)
        parse_retry_after(text, 0.0)


def test_what_a_response_says_is_bounded_by_header_and_in_number() -> None:
    many = b"".join(b"X-%d: %d\r\n" % (number, number) for number in range(300))
    result = received(many)
    assert isinstance(result, Response)
    assert len(result.headers) == MOST_HEADERS
    assert result.headers["content-length"] == "0"
    result = received(b"Location: https://h/?" + b"a" * 30_000 + b"\r\n")
    assert isinstance(result, Response)
    assert len(result.headers["location"]) == MOST_HEADER


def test_a_body_is_framed_by_what_comes_after_too_many_headers() -> None:
    reader = ResponseReader(100)
    many = b"".join(b"X-%d: 1\r\n" % number for number in range(300))
    result = reader.feed(b"HTTP/1.1 200 OK\r\n" + many + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
    assert isinstance(result, Response)
    assert (result.body, result.truncated) == (b"hi", False)


def test_a_url_has_a_bound() -> None:
    assert check_url("https://h/".ljust(MOST_URL, "a"))
    with pytest.raises(ValueError, match="at most 2048"):
        check_url("https://h/".ljust(MOST_URL + 1, "a"))
    assert location_url("https://h/", "/" + "a" * MOST_URL) is None
