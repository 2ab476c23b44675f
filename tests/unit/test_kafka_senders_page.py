"""docs/kafka-senders.md: every record that its examples describe is the message that the page says, also in languages
that cannot be run here."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from relay.cli.send import Outgoing, record_of
from relay.domain.errors import UserError
from relay.domain.message import Message, parse_message
from relay.log.port import NewRecord
from tests.documents import ROOT, Fence, commands, fences

PAGE = ROOT / "docs" / "kafka-senders.md"
PAYLOAD = b'{"ref": "refs/heads/main"}'


def fence_of(language: str, beginning: str = "") -> Fence:
    [found] = [each for each in fences(PAGE) if each.language == language and each.text.startswith(beginning)]
    return found


def expected(message_id: str) -> Message:
    return Message("github", message_id, ("ci",), "push", content_type="application/json", payload=PAYLOAD)


def kcat_records() -> Iterator[NewRecord]:
    header, envelope = fence_of("sh", "kcat"), fence_of("sh", "echo '{\"source_id")
    [words] = filter(None, commands(header))
    assert words[-1] == "push.json"
    yield kcat_record(words, PAYLOAD)
    echo, words = filter(None, commands(envelope))
    yield kcat_record(words, " ".join(echo[1:]).encode())


def kcat_record(words: list[str], value: bytes) -> NewRecord:
    """As `kcat` reads its arguments."""
    options = list(pairwise(words))
    named = dict(options)
    headers = [text.partition("=") for option, text in options if option == "-H"]
    assert named["-X"] == "topic.partitioner=murmur2_random"
    return NewRecord(
        named["-t"], named["-k"].encode(), value, tuple((name, text.encode()) for name, _, text in headers)
    )


def java_records() -> Iterator[NewRecord]:
    text = fence_of("java").text
    payload = json.loads(found(r'payload = (".*");', text))
    headers = re.findall(r'headers\(\)\.add\("([^"]+)", "([^"]*)"\.getBytes\(UTF_8\)\)', text)
    template = found(r'envelope = """\n\s*(\S.*)"""', text)
    for value, of_record in ((payload, headers), (template % payload, [])):
        yield made(found(r'ProducerRecord<>\("(\w+)", "\w+"', text), value, of_record)


def go_records() -> Iterator[NewRecord]:
    text = fence_of("go").text
    payload = found(r"const payload = `(.*)`", text)
    headers = re.findall(r'\{Key: "([^"]+)", Value: \[\]byte\("([^"]*)"\)\}', text)
    before, after = re.findall(r"`(\{\"source_id.*)` \+ payload \+ `(.*)`", text)[0]
    for value, of_record in ((payload, headers), (before + payload + after, [])):
        yield made(found(r'DefaultProduceTopic\("(\w+)"\)', text), value, of_record)


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, pattern
    return match[1]


def made(topic: str, value: str, headers: list[tuple[str, str]]) -> NewRecord:
    return NewRecord(topic, b"github", value.encode(), tuple((name, text.encode()) for name, text in headers))


@pytest.mark.parametrize(("language", "records"), [("kcat", kcat_records), ("java", java_records), ("go", go_records)])
def test_each_record_is_the_message_that_the_page_says(
    language: str, records: Callable[[], Iterator[NewRecord]]
) -> None:
    header, envelope = records()
    for number, record in enumerate((header, envelope), 1):
        assert (record.topic, record.key) == ("from_sender", b"github")
        assert parse_message(record.value, record.headers) == expected(f"{language}-{number}")
    assert header.headers
    assert not envelope.headers


def test_the_command_produces_the_same_record_as_kcat() -> None:
    header, _ = kcat_records()
    outgoing = Outgoing("github", PAYLOAD, "kcat-1", ("ci",), "push")
    ours = record_of(outgoing, "from_sender")
    assert (ours.topic, ours.key, ours.value) == (header.topic, header.key, header.value)
    assert sorted(ours.headers) == sorted(header.headers)


def test_the_command_carries_headers_and_several_receivers() -> None:
    outgoing = Outgoing("github", b"a,b", "1", ("ci", "docs"), None, "text/csv", (("x-team", "core"),))
    record = record_of(outgoing, "from_sender")
    assert parse_message(record.value, record.headers) == Message(
        "github", "1", ("ci", "docs"), content_type="text/csv", payload=b"a,b", headers=(("x-team", "core"),)
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"source_id": ""}, "header ce_source is missing or empty"),
        ({"source_id": "a\nb"}, "control"),
        ({"message_id": "x" * 300}, "300 bytes"),
        ({"receivers": ("Not A Name",)}, "is not a receiver name"),
        ({"source_id": "\udcff"}, "UTF-8"),
    ],
)
def test_what_no_relay_could_read_is_not_produced(change: dict[str, object], fault: str) -> None:
    with pytest.raises(UserError, match=fault) as error:
        record_of(replace(Outgoing("github", PAYLOAD, "1", ("ci",)), **change), "from_sender")  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_the_options_of_kcat_are_read_as_a_shell_does() -> None:
    record = kcat_record(shlex.split("kcat -t a -k b -X topic.partitioner=murmur2_random -H 'c=d=e'"), b"")
    assert record == NewRecord("a", b"b", b"", (("c", b"d=e"),))
