"""The options of `relay send` that become fields of the message."""

import pytest
from click import BadParameter

from relay.cli.send import Outgoing, record_of, send
from relay.domain.message import parse_message
from relay.domain.timing import FIELDS, Timing


def test_each_field_of_a_messages_timing_is_an_option() -> None:
    assert set(FIELDS) <= {each.name for each in send.params}


def test_a_window_for_newer_messages_is_given_as_json() -> None:
    given = '{"key": "doc-7", "window": "10s"}'
    context = send.make_context("send", ["--source", "app", "--coalesce", given, "-"])
    record = record_of(Outgoing("app", b"{}", "1", fields={"coalesce": context.params["coalesce"]}), "from_sender")
    assert parse_message(record.value, record.headers).timing == Timing(key="doc-7", window=10.0)


def test_a_command_that_waits_says_so_in_its_record() -> None:
    for wait_s, kept in ((None, 0), (0.5, 1), (20.0, 20)):
        record = record_of(Outgoing("app", b"{}", "1", wait_s=wait_s), "from_sender")
        assert parse_message(record.value, record.headers).wait_s == kept


@pytest.mark.parametrize("given", ["doc-7", "[]", '{"key": []}', "\udcff"])
def test_what_is_not_such_an_object_is_a_mistake_on_the_command_line(given: str) -> None:
    with pytest.raises(BadParameter, match='"window": "10s"'):
        send.make_context("send", ["--source", "app", "--coalesce", given, "-"])
