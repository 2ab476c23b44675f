"""A relay dies at any of its calls, is exported, and another one imports it, dying at any of its own: nothing is lost,
and no receiver with a status endpoint gets anything twice."""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest

from relay.config.encryption import NO_KEYS
from relay.control.records import EntryRecord, decode
from relay.domain.coordinate import Coordinate
from relay.domain.errors import UserError
from relay.domain.receiver import Endpoint, Life, Receiver, RetryPolicy, Source
from relay.domain.times import rfc3339
from relay.log.port import NewRecord, Record
from relay.transfer import incoming, outgoing
from relay.transfer.form import BeginLine, EndLine, EntryLine, Line, RecordLine, decode_line, encode_line
from relay.transfer.incoming import Import, ImportResult
from relay.transfer.outgoing import Export
from tests.fakes.log import MemoryLog
from tests.fakes.strikes import CRASHES, CrashError, Fuse, Fused, Strikes
from tests.fakes.virtual_time import run_virtually
from tests.fakes.world import World, message, receiver, recovery_of

EXPECTED = {
    ("a-1", "answers"): {"answered"},
    ("a-2", "answers"): {"answered"},
    ("a-2", "later"): {"answered"},
    ("b-3", "later"): {"answered"},
    ("b-4", "fails"): {"failed"},
}


def _receivers() -> list[Receiver]:
    return [
        receiver("answers", "/answer", status=True),
        receiver("later", "/later", status=True),
        receiver("fails", "/fail", max_attempts=2),
    ]


async def _world(former: World | None = None, sources: Sequence[Source] = ()) -> World:
    """With receivers that are declared; `former`: whose outside it has, too."""
    world = await World(_receivers(), sources=sources).create()
    if former is not None:
        world.outside = former.outside
    for one in _receivers():
        entry = {"post_endpoint": one.post.url, "status_endpoint": one.status_endpoint}
        value = EntryRecord("api", {name: value for name, value in entry.items() if value is not None}).encode()
        await world.append(world.topics.receiver_config, one.name.encode(), value, ())
    return world


async def _send(world: World) -> None:
    await world.send(
        message(1, "a", "answers"),
        message(2, "a", "answers", "later"),
        message(3, "b", "later"),
        message(4, "b", "fails"),
    )


async def _ready(world: World) -> None:
    recovery = recovery_of(world, "transfer", await world.client(), in_doubt_s=3600.0)
    while await recovery.check() is None:
        await world.clock.sleep(1.0)  # until the lease of the dead one is over


async def exported(world: World) -> list[bytes]:
    await _ready(world)
    lines: list[bytes] = []
    log = MemoryLog(world.broker)
    await log.start()
    await Export(
        log,
        world.state,
        world.topics,
        world.clock,
        since_ms=0,
        variables={},
        ring=NO_KEYS,
        with_secrets=False,
        version="1",
        write=lambda line: lines.append(encode_line(line)),
    ).run()
    return lines


async def imported(
    world: World, lines: list[bytes], fuse: Fuse | None = None, report: Callable[[str], None] = lambda _: None
) -> ImportResult:
    await _ready(world)
    log = MemoryLog(world.broker)
    await log.start()
    fuse = fuse or Fuse()
    fused_log, fused_state = Fused(log, fuse, "log"), Fused(world.state, fuse, "state")
    return await Import(fused_log, fused_state, world.topics, world.clock, _lines(lines), report).run()


def _lines(lines: list[bytes]) -> Iterator[Line]:
    return (decode_line(line, "export", number) for number, line in enumerate(lines, 1))


async def _crashed(blow_at: int | None, *, after: bool = False) -> tuple[World, Fuse]:
    """A relay that died at that call, or was stopped after 4 s."""
    world, fuse = await _world(), Fuse(blow_at, after=after)
    await _send(world)
    await world.run(fuse, 4 if blow_at is None else 40)
    return world, fuse


async def _move(former: World) -> World | None:
    """None: the export is refused until something has ended."""
    world = await _world(former)
    try:
        lines = await exported(former)
    except UserError:
        return None
    await imported(world, lines)
    return world


@CRASHES
def test_a_relay_that_died_at_any_call_is_moved(late: bool, strikes: Strikes) -> None:
    moved = []

    async def story(blow_at: int) -> None:
        former, fuse = await _crashed(blow_at, after=late)
        world = await _move(former)
        if world is None:
            with pytest.raises(UserError, match="run the relay for a moment"):
                await exported(former)
            await former.run(Fuse(), 3)
            world = await _move(former)
        else:
            moved.append(blow_at)
        place = f"call {blow_at}, {fuse.names[-1]}"
        assert world is not None, place
        await world.run(Fuse(), 120, until=lambda: world.outside.results() == EXPECTED)
        assert world.outside.results() == EXPECTED, place
        assert sorted(world.outside.arrived("/answer")) == ["a-1", "a-2"], place
        assert sorted(world.outside.arrived("/later")) == ["a-2", "b-3"], place

    calls = strikes(run_virtually(_crashed(None))[1])
    for blow_at in calls:
        run_virtually(story(blow_at))
    assert len(moved) > len(calls) / 2


@CRASHES
def test_an_import_that_dies_at_any_call_goes_on(late: bool, strikes: Strikes) -> None:
    async def story(blow_at: int | None) -> Fuse:
        former, _ = await _crashed(None)
        lines = await exported(former)
        world, fuse = await _world(former), Fuse(blow_at, after=late)
        try:
            await imported(world, lines, fuse)
        except CrashError:
            await imported(world, lines)
        assert (await imported(world, lines)).again
        appended = [record for topic in _topics_of(world) for record in world.broker.records(topic)]
        assert len(appended) == sum(isinstance(line, RecordLine) for line in _lines(lines)), blow_at
        await world.run(Fuse(), 120, until=lambda: world.outside.results() == EXPECTED)
        assert world.outside.results() == EXPECTED, blow_at
        assert sorted(world.outside.arrived("/answer")) == ["a-1", "a-2"], blow_at
        assert sorted(world.outside.arrived("/later")) == ["a-2", "b-3"], blow_at
        return fuse

    for blow_at in strikes(run_virtually(story(None))):
        run_virtually(story(blow_at))


def _topics_of(world: World) -> list[str]:
    topics = world.topics
    own = [topic for name in ("answers", "later", "fails") for topic in topics.lane_groups(name)]
    return [topics.from_sender, topics.to_sender, topics.failed_messages, *own]


async def test_what_was_finished_is_not_sent_again() -> None:
    former = await _world()
    await _send(former)
    await former.run(Fuse(), 120, until=lambda: former.outside.results() == EXPECTED)
    posts = len(former.outside.posts)
    world = await _world(former)
    await imported(world, await exported(former))
    await _send(world)
    await world.run(Fuse(), 30)
    assert len(world.outside.posts) == posts
    assert [entry.reason for entry in await world.state.failed("fails", limit=9)] == ["exhausted"]
    assert await world.is_at_rest()


async def test_open_dead_letters_go_over_that_are_too_many_to_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "LISTED", 1)
    former = await _world()
    await former.send(*(message(number, "b", "fails") for number in range(3)))
    await former.run(Fuse(), 120, until=lambda: len(former.outside.results()) == 3)
    letters = [line for line in _lines(await exported(former)) if isinstance(line, RecordLine)]
    assert {dict(line.headers)["ce_id"] for line in letters} == {b"b-0", b"b-1", b"b-2"}
    assert len(letters) == 3


async def test_so_do_those_of_the_way_back_and_those_whose_rows_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "LISTED", 1)
    down = Source("b", Endpoint("http://sender/down", retry=RetryPolicy(max_attempts=1)))
    former = await _world(sources=[down])
    former.outside.down.add("down")
    await former.send(*(message(number, "b", "answers") for number in range(3)))
    await former.run(Fuse(), 120, until=lambda: former.told.dead_letters["callback_exhausted"] == 3)
    assert await _names_of_letters(former) == [b"b-0", b"b-1", b"b-2"]
    await former.clock.sleep(10 * former.settings.dedup_window)
    assert await _names_of_letters(former) == [b"b-0", b"b-1", b"b-2"]


async def _names_of_letters(former: World) -> list[bytes]:
    lines = [line for line in _lines(await exported(former)) if isinstance(line, RecordLine)]
    return sorted(dict(line.headers)["ce_id"] for line in lines if line.topic == "failed_messages")


async def test_an_export_of_what_has_not_changed_is_the_same_one() -> None:
    former, _ = await _crashed(None)
    first, again = await exported(former), await exported(former)
    ids = [line.id for lines in (first, again) for line in _lines(lines) if isinstance(line, BeginLine)]
    assert ids[0] == ids[1]
    await _send(former)
    other = next(_lines(await exported(former)))
    assert isinstance(other, BeginLine)
    assert other.id != ids[0]


def _without_end(lines: list[bytes]) -> list[bytes]:
    return lines[:-1]


def _with_a_gap(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-2], lines[-1]]


def _cut(lines: list[bytes]) -> list[bytes]:
    return [*lines[:-2], lines[-2][:9]]


def _newer(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"format":1', b'"format":2'), *lines[1:]]


def _empty(_: list[bytes]) -> list[bytes]:
    return []


def _without_begin(lines: list[bytes]) -> list[bytes]:
    return lines[1:]


def _with(change: bytes, to: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Changes the first line that has `change`, a pattern."""

    def harm(lines: list[bytes]) -> list[bytes]:
        number = next(number for number, line in enumerate(lines) if re.search(change, line))
        return [*lines[:number], re.sub(change, to, lines[number]), *lines[number + 1 :]]

    return harm


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_empty, "not a whole export: it is empty"),
        (_without_begin, "not a whole export: its first line is missing"),
        (_with(rb'"stage":\d', b'"stage":1'), "Invalid enum value 1 - at `$.stage`"),
        (_with(rb'"generation":\d', b'"generation":-1'), "at `$.generation`"),
        (_with(rb'"code":\d+', b'"code":256'), "at `$.code`"),
        (_with(rb'(?<="row").*"digest":"[^"]*"', rb',"owner":"s:a","digest":"AAAA"'), "at `$.digest`"),
        (
            _with(rb'(?<="message").*"digest":"[^"]*"', rb',"source_id":"a","message_id":"","digest":""'),
            "at `$.digest`",
        ),
        *(
            (_with(rb'"not_before":[^,]*', b'"not_before":' + number), "at `$.not_before`")
            for number in (b"1e300", b"-1", b"true", b"1e400")
        ),
        (_with(rb'"not_before":[^,]*', b'"not_before":NaN'), "line "),
        (_without_end, "the export ends early"),
        (_with_a_gap, "it is incomplete"),
        (_cut, "not a line of `relay export`"),
        (_newer, "not an export that this version reads"),
    ],
)
def test_a_file_that_is_not_whole_is_refused_and_the_whole_one_goes_on(
    harm: Callable[[list[bytes]], list[bytes]], said: str
) -> None:
    async def story() -> None:
        former, _ = await _crashed(None)
        lines = await exported(former)
        assert isinstance(decode_line(lines[-1], "export", 1), EndLine)
        world = await _world(former)
        with pytest.raises(UserError, match=re.escape(said)):
            await imported(world, harm(lines))
        await imported(world, lines)
        await world.run(Fuse(), 120, until=lambda: world.outside.results() == EXPECTED)
        assert world.outside.results() == EXPECTED

    run_virtually(story())


async def test_entries_are_imported_without_reading_all_that_are_there_for_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 100,000 receivers that would be some 50 million records."""
    begin, *_ = await exported(await _world())
    value = EntryRecord("api", {"post_endpoint": "https://a.example/", "lane": "shared"}).encode().decode()
    read, scan = list[str](), MemoryLog.scan

    def counted(log: MemoryLog, topic: str, *span: int, **ends: int) -> AsyncIterator[Sequence[Record]]:
        read.append(topic)
        return scan(log, topic, *span, **ends)

    async def reads(entries: int) -> int:
        read.clear()
        lines = [encode_line(EntryLine(f"more-{number}", value)) for number in range(entries)]
        await imported(await _world(), [begin, *lines, encode_line(EndLine(1 + entries))])
        return len(read)

    monkeypatch.setattr(MemoryLog, "scan", counted)
    monkeypatch.setattr(incoming, "BATCH", 1)
    assert await reads(9) == await reads(1)


async def test_what_an_import_waits_for_is_reported() -> None:
    former, _ = await _crashed(None)
    world = await _world(former)
    until = rfc3339(world.clock.time() + 25.0)
    harm = _with(rb'"not_before":[^,]*', b'"not_before":%f' % (world.clock.time() + 25.0))
    said: list[str] = []
    await imported(world, harm(await exported(former)), report=said.append)
    assert said == [f"waits until {until}: an attempt of the former relay may arrive until then"]
    assert rfc3339(world.clock.time()) == until


async def test_a_second_export_in_the_file_is_not_passed_over_in_silence() -> None:
    former = await _world()
    lines = await exported(former)
    world = await _world(former)
    with pytest.raises(UserError, match=f"line {len(lines)} was imported, and what is behind it was not"):
        await imported(world, [*lines, *lines])


async def test_secrets_go_over_only_when_asked_for() -> None:
    former = await _world()
    entry: dict[str, object] = {"post_endpoint": "https://a.example/", "secret": "${enc:0123abcd:AAAA}"}
    await former.append(former.topics.receiver_config, b"secret", EntryRecord("api", entry).encode(), ())
    with pytest.raises(UserError, match="secret has secrets that are encrypted"):
        await exported(former)


async def test_the_life_of_a_name_goes_over_and_all_of_the_new_log_is_behind_its_begin() -> None:
    former = await _world()
    entry: dict[str, object] = {"post_endpoint": "https://a.example/", "lane": "shared"}
    value = EntryRecord("api", entry, Life("7-1", former.topics.from_sender, (9, 9))).encode()
    await former.append(former.topics.receiver_config, b"named", value, ())
    world = await _world(former)
    await imported(world, await exported(former))
    [there] = [r for r in world.broker.records(world.topics.receiver_config) if r.key == b"named"]
    life = decode(there.value or b"").life
    assert life.id == "7-1"
    assert life.began_before(Coordinate(world.topics.from_sender, 0, 0))


async def test_receivers_with_unfinished_messages_have_to_be_declared_here() -> None:
    former, _ = await _crashed(None)
    world = await _world(former)
    log = MemoryLog(world.broker)
    await log.start()
    names = ("answers", "later", "fails")
    lines = [line for line in await exported(former) if b'"line":"entry"' not in line]
    lines[-1] = encode_line(EndLine(len(lines) - 1))
    await log.append([NewRecord(world.topics.receiver_config, name.encode(), None) for name in names])
    with pytest.raises(UserError, match="is not declared here, and has unfinished messages"):
        await imported(world, lines)
