"""Who is declared, read without anybody's secrets."""

from collections.abc import Mapping

from relay.config.receivers_file import parse_receivers_file
from relay.control.apply import apply_file
from relay.control.resolve import DeclaredEntries, read_declared
from relay.domain.hold import Hold, encode_hold
from relay.domain.topics import Topics
from relay.log.port import NewRecord
from tests.fakes.log import MemoryBroker, opened_log
from tests.fakes.virtual_time import virtually

TOPICS = Topics()
FILE = """
sources:
  called: {callback: {url: "${URL}", secret: "${SECRET}"}, answers: non_empty}
  reads: {callback: kafka, failures: false}
  "*": {answers: none}
receivers:
  own: {post_endpoint: "https://ci.example/${PATH}", secret: "${SECRET}"}
  other: {post_endpoint: "https://ci.example/", lane: shared}
"""


async def _declared(text: str, more: Mapping[str, bytes] | None = None) -> DeclaredEntries:
    log = await opened_log(MemoryBroker(), TOPICS.fixed(), TOPICS.fixed_groups())
    await apply_file(log, parse_receivers_file(text, "test"), TOPICS)
    await log.append([NewRecord(TOPICS.receiver_config, key.encode(), value) for key, value in (more or {}).items()])
    return await read_declared(log, TOPICS)


@virtually
async def test_what_is_declared_is_known_although_its_references_are_not() -> None:
    declared = await _declared(FILE)
    assert declared.lanes == {"own"}
    called, reads, other = (declared.sources.source(name) for name in ("called", "reads", "anybody"))
    assert called.callback is not None
    assert (called.answers, called.kafka, called.failures) == ("non_empty", False, True)
    assert (reads.callback, reads.kafka, reads.failures) == (None, True, False)
    assert (other.source_id, other.callback, other.answers) == ("anybody", None, "none")


@virtually
async def test_without_any_source_nobody_is_called() -> None:
    declared = await _declared('receivers: {own: {post_endpoint: "https://ci.example/"}}')
    assert declared.sources.source("anybody").callback is None


@virtually
async def test_what_a_newer_version_wrote_counts_by_its_key() -> None:
    """A lane too many is looked for, and not found; one too few would be left unread."""
    declared = await _declared(FILE, {"newer": b"?"})
    assert declared.lanes == {"own", "newer"}


@virtually
async def test_a_kind_of_record_that_a_newer_version_wrote_is_no_lane() -> None:
    """No topic can have such a name: Kafka refuses to look for it."""
    declared = await _declared(FILE, {"newer:1": b"{}", "newer:2": b"?"})
    assert declared.lanes == {"own"}


@virtually
async def test_a_hold_is_nobody() -> None:
    declared = await _declared(FILE, {"hold:r:gone": encode_hold(Hold("gone", 1.0))})
    assert declared.lanes == {"own"}


@virtually
async def test_what_a_newer_version_wrote_of_a_source_calls_nobody() -> None:
    declared = await _declared(FILE, {"source:newer": b"?"})
    assert declared.sources.source("newer").callback is None


@virtually
async def test_our_own_source_is_none_of_those_that_have_no_entry() -> None:
    declared = await _declared("sources: {'*': {callback: {url: 'https://s.example/', signature: none}}}", {})
    assert declared.sources.source("other").callback is not None
    assert declared.sources.source("relay").callback is None
