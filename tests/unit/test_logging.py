"""Logs are one line per event, escape what could forge lines, and hide what looks like a secret."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from aiokafka.protocol.admin import SaslAuthenticateRequest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.secrecy import is_secret_name
from relay.telemetry.logging import LogFormat, LogLevel, configure, get_logger
from relay.telemetry.redaction import escape_control, public_url

CANARY = "canary-4711"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    config = structlog.get_config()
    yield
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)
    structlog.configure(**config)


def configured(format_: LogFormat = "json", level: LogLevel = "info") -> io.StringIO:
    """Where log lines go from now on."""
    out = io.StringIO()
    configure(format_, level, out)
    return out


def logged(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def crash(message: str) -> None:
    local_secret = CANARY
    raise ValueError(message + local_secret[:0])


def test_a_stack_is_a_list_in_json_and_marked_lines_on_a_terminal() -> None:
    out = configured()
    get_logger("relay.process").warning("event_loop_blocked", stack=["a.py:1 f: g()", "b.py:2 g: h()\x1b"])
    assert logged(out)[0]["stack"] == ["a.py:1 f: g()", "b.py:2 g: h()\\x1b"]
    terminal = Terminal()
    configure("console", "info", terminal)
    get_logger("relay.process").warning("event_loop_blocked", stack=["a.py:1 f: g()", "b.py:2 g: h()\x1b"])
    assert "event_loop_blocked" in terminal.getvalue()
    assert terminal.getvalue().endswith("\n  | a.py:1 f: g()\n  | b.py:2 g: h()\\x1b\n")


def test_an_event_is_one_json_line_with_its_facts() -> None:
    out = configured()
    get_logger("relay.worker", role="to-receiver").info("delivered", receiver="ci", offset=7, last_status=None)
    [event] = logged(out)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "level": "info",
        "event": "delivered",
        "logger": "relay.worker",
        "role": "to-receiver",
        "receiver": "ci",
        "offset": 7,
        "last_status": None,
    }


@pytest.mark.parametrize(("out", "is_json"), [(io.StringIO(), True), (Terminal(), False)])
def test_auto_means_json_unless_a_terminal_listens(out: io.StringIO, is_json: bool) -> None:
    configure("auto", "info", out)
    get_logger("relay").info("started")
    assert out.getvalue().startswith("{") is is_json
    assert ("\x1b[" in out.getvalue()) is not is_json  # colours


def test_the_level_is_kept_by_our_loggers_and_by_libraries() -> None:
    out = configured(level="warning")
    get_logger("relay").info("hidden")
    logging.getLogger("some.library").info("hidden")
    get_logger("relay").warning("shown")
    logging.getLogger("some.library").warning("shown %s", "too")
    assert [event["event"] for event in logged(out)] == ["shown", "shown too"]


LOGIN = SaslAuthenticateRequest(b"\0relay\0password").prepare({SaslAuthenticateRequest.API_KEY: (0, 1)})


@pytest.mark.parametrize(
    ("library", "line", "at_levels"),
    [
        ("urllib3.connectionpool", ("info", "Starting a connection"), ["debug"]),
        ("urllib3.connectionpool", ("warning", "Retrying"), ["info", "debug"]),
        ("aiokafka.client", ("error", "Unable connect"), ["debug"]),  # we log them ourselves
        ("aiokafka.conn", ("info", "Authenticated as %s via %s", "relay", "PLAIN"), ["debug"]),
        ("aiokafka.conn", ("debug", "Request to %s: %s", "kafka", LOGIN), []),  # it has a password, or messages
    ],
)
def test_what_client_libraries_say_is_shown_at(library: str, line: tuple[Any, ...], at_levels: list[str]) -> None:
    shown: list[str] = []
    levels: tuple[LogLevel, ...] = ("info", "debug")
    for level in levels:
        out = configured(level=level)
        getattr(logging.getLogger(library), line[0])(*line[1:])
        shown += [level] * len(logged(out))
    assert shown == at_levels


def test_a_second_configure_replaces_the_first_also_for_loggers_already_made() -> None:
    first = configured()
    log = get_logger("relay")
    second = configured()
    log.info("once")
    logging.getLogger("library").warning("once")
    assert first.getvalue() == ""
    assert len(logged(second)) == 2


def test_context_variables_become_facts() -> None:
    out = configured()
    with structlog.contextvars.bound_contextvars(message_id="gh-1"):
        get_logger("relay").info("delivered")
    assert logged(out)[0]["message_id"] == "gh-1"


@pytest.mark.parametrize("format_", ["json", "console"])
def test_no_secret_and_no_payload_gets_into_a_line(format_: LogFormat) -> None:
    out = configured(format_)
    get_logger("relay").info(
        "configured",
        webhook_secret=CANARY,
        body=CANARY.encode(),
        url=f"https://user:{CANARY}@ci.example/hooks?token={CANARY}#{CANARY}",
        headers={"Authorization": f"Bearer {CANARY}", "X-Api-Key": CANARY},
        nested=[{"redis_password": CANARY}, (CANARY.encode(),)],
    )
    assert "configured" in out.getvalue()
    assert "https://ci.example/hooks" in out.getvalue()
    assert CANARY not in out.getvalue()


@pytest.mark.parametrize("format_", ["json", "console"])
def test_a_traceback_forges_no_line_and_shows_no_local_variables(format_: LogFormat) -> None:
    out = configured(format_)
    try:
        crash("first\r\n2026-01-01 [info] forged \x1b[31m")
    except ValueError:
        get_logger("relay").exception("crashed")
        logging.getLogger("library").exception("crashed as well")
    lines = out.getvalue().splitlines()
    heads = [line for line in lines if not line.startswith("  | ")]
    assert len(heads) == 2
    assert "Traceback" in out.getvalue()
    assert CANARY not in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


@pytest.mark.parametrize("format_", ["json", "console"])
@given(name=st.text(min_size=1), value=st.text())
def test_whatever_text_comes_a_line_stays_a_line(format_: LogFormat, name: str, value: str) -> None:
    out = configured(format_)
    get_logger("relay").info("event", **{"field_" + name: value, "nested": {name: [value]}})
    text = out.getvalue()
    assert len(text.splitlines()) == 1
    assert text.removesuffix("\n").isprintable() or escape_control(text.removesuffix("\n")) == text[:-1]
    text.encode()  # no lone surrogate is left


def test_a_stream_that_cannot_be_written_to_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    out = configured()
    out.close()
    get_logger("relay").error("lost")
    logging.getLogger("library").error("lost\x1b")
    assert capsys.readouterr().err == ""


def test_logs_go_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "info")
    get_logger("relay").info("here")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "here"


@given(st.text())
def test_escaping_leaves_nothing_that_moves_a_cursor(text: str) -> None:
    escaped = escape_control(text)
    assert len(escaped.splitlines()) <= 1
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in escaped)
    assert escape_control(escaped) == escaped


@pytest.mark.parametrize("text", ["plain", "push gh-1", "größe", "日本語", "a\\b", "🎉"])
def test_harmless_text_is_not_touched(text: str) -> None:
    assert escape_control(text) == text


@pytest.mark.parametrize(
    "name",
    [
        *("secret", "webhook_secret", "kafka_sasl_password", "answer_token", "signing_key", "privateKey"),
        *("Authorization", "X-Api-Key", "api_key", "Set-Cookie", "webhook-signature"),
        *("auth", "proxy-auth", "dsn", "SENTRY_DSN"),
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["author", "authority", "order_key", "receiver", "attempt", "key", "stage", "hdsnx"])
def test_other_names_are_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ci.example/hooks", "https://ci.example/hooks"),
        ("https://u:p@ci.example:8443/hooks?a=1#f", "https://ci.example:8443/hooks"),
        ("redis://:p@ss@redis:6379/0", "redis://redis:6379/0"),
        ("https://ci.example/@me?x=@", "https://ci.example/@me"),
        ("", ""),
    ],
)
def test_urls_are_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert public_url(url) == shown
