"""Payloads on a page: in order, as sent, in hex; and the commands that send one again."""

import json
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.pages import payload_view
from relay.pages.payload_view import MOST_SHOWN, body_text, curl, hex_dump, readable, shown

MORE = "\n[the rest is not shown]"


def test_json_is_put_in_order_and_its_numbers_stay() -> None:
    found = shown(b'{"b":1.10,"a":[1e400,{}],"c":[],"d":"\\u00e9"}')
    assert found.how == "pretty"
    assert found.text == '{\n  "b": 1.10,\n  "a": [\n    1e400,\n    {}\n  ],\n  "c": [],\n  "d": "é"\n}'


@pytest.mark.parametrize(
    ("payload", "can"),
    [
        (b"{}", ["pretty", "raw", "hex"]),
        (b"hello", ["raw", "hex"]),
        (b"\xff\x00", ["hex"]),
        (b"a\x00b", ["hex"]),
        (b"[" * 100_000, ["raw", "hex"]),
    ],
)
def test_it_is_shown_as_what_it_can_be(payload: bytes, can: list[str]) -> None:
    found = shown(payload, "pretty")
    assert (found.can, found.how) == (can, can[0])


def test_what_hides_or_steers_is_written_out() -> None:
    assert readable("a\x1b[2Jb\tc\n\u202ed\u200be\ud800") == "a\\x1b[2Jb\tc\n\\u202ed\\u200be\\ud800"
    assert "\\ud800" in shown(b'{"a": "\\ud800"}').text


def test_a_long_one_is_cut() -> None:
    found = shown(b"x" * (MOST_SHOWN + 1))
    assert (len(found.text), found.cut) == (MOST_SHOWN, True)
    assert shown(b"\xff" * 5_000).cut


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("[" * 32 + "0" + "]" * 32, "pretty"),
        ("[" * 33 + "0" + "]" * 33, "raw"),
        ("[" * 320 + ",".join("0" * 20_000) + "]" * 320, "raw"),
        ('{"a":' * 33 + "{}" + "}" * 33, "raw"),
        ("[" + ",".join("0" * MOST_SHOWN) + "]", "raw"),
    ],
)
def test_what_is_deep_or_long_is_shown_as_it_was_sent(text: str, how: str) -> None:
    found = shown(text.encode())
    assert found.how == how
    assert len(found.text) <= MOST_SHOWN
    if how == "raw":
        assert found.text == text[:MOST_SHOWN]
        assert body_text(text) == found.text + (MORE if len(text) > MOST_SHOWN else "")


def test_no_more_is_put_in_order_than_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[object]()

    def write(value: object) -> str:
        written.append(value)
        return "null"

    monkeypatch.setattr(payload_view, "_json", write)
    nulls = "[" * 31 + ",".join(["null"] * 13_000) + "]" * 31
    found = shown(nulls.encode())
    assert (found.how, len(found.text), found.cut) == ("pretty", MOST_SHOWN, True)
    assert len(written) < MOST_SHOWN / (2 * 31)
    assert body_text(nulls) == found.text + MORE


def test_hex_has_the_place_the_bytes_and_what_is_printable() -> None:
    lines = hex_dump(bytes(range(60, 78)) + b"\n").splitlines()
    assert lines == [
        "00003c" .replace("3c", "00") + "  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK",
        "000010  4c 4d 0a" + " " * 15 + "  " + " " * 23 + "  LM.",
    ]  # fmt: skip


@given(st.binary(max_size=300))
def test_whatever_it_is_it_can_be_shown_and_written(payload: bytes) -> None:
    for how in ("pretty", "raw", "hex", None):
        shown(payload, how).text.encode()


def arguments(command: str) -> list[str]:
    """Of the last command, as a shell takes them."""
    last = command.replace("\\\n", " ").splitlines()[-1] if command.startswith("curl -fsS") else command
    return shlex.split(last.replace("\\\n", " "))


def test_it_is_sent_again_with_an_id_of_its_own() -> None:
    command = curl("http://h:1", "a b", "m'1", "push", None, ["ci", "cd"], b'{"x": "it\'s"}')
    words = arguments(command)
    assert words[3] == "http://h:1/v1/sources/a%20b/messages?receiver=ci&receiver=cd"
    assert "ce-id: m%271-again" in words
    assert words[-2:] == ["--data-binary", '{"x": "it\'s"}']


@pytest.mark.parametrize("payload", [None, b"\xff", b"a\x1b[201~\nrm -rf x", b"x" * 20_000, b"@/etc/passwd"])
def test_what_cannot_stand_in_a_command_is_fetched_first(payload: bytes | None) -> None:
    command = curl("http://h:1", "s", "m/1", None, "text/plain", [], payload)
    assert command.startswith("curl -fsS ")
    assert "http://h:1/v1/sources/s/messages/m%2F1/payload" in command
    assert command.endswith("--data-binary @payload")
    assert "\x1b" not in command


HOSTILE = st.text(min_size=1, max_size=30)


@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
def test_no_id_or_type_gets_out_of_its_quotes(source_id: str, message_id: str, event_type: str, content: str) -> None:
    try:
        for text in (source_id, message_id, event_type, content):
            text.encode()
    except UnicodeEncodeError:
        return
    command = curl("http://h:1", source_id, message_id, event_type, content, [], json.dumps(content).encode())
    words = shlex.split(command.replace("\\\n", " "))
    assert words.count("curl") == (2 if "-fsS" in words else 1)
    assert not any(char in command for char in "\x1b\x07\u202e")


def test_no_type_is_more_than_its_header() -> None:
    words = arguments(curl("http://h:1", "s", "m", "a\nx-evil: 1", "text/plain\nx-evil: 1", [], b"{}"))
    assert "content-type: text/plain%0Ax-evil: 1" in words
    assert not any("\n" in word for word in words)


def test_a_shell_takes_it_so() -> None:
    command = curl("http://h:1", "$(id)", "`id`", "x'; id; '", "a\\b", [], b"$(id) `id` \\\" ' ; id")
    script = 'curl() { printf "%s\\0" "$@"; }\n' + command
    said = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=20).stdout.split(b"\0")
    assert said[-2] == b"$(id) `id` \\\" ' ; id"
