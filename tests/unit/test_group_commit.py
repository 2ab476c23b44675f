"""Appends that wait for a write share the next one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence

import pytest
import pytest_asyncio

from relay.domain.errors import LogUnavailable, PartlyAppended
from relay.log.port import Coordinate, TopicPartition
from relay.log.streams.group_commit import MAX_RECORDS, GroupCommit, Prepared

AT = TopicPartition("t", 0)


class Disk:
    """Writes when it is let; `writes` holds what each write had, `failing` the numbers of those that fail."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.failing = set[int]()
        self._end = 0

    async def write(self, batch: Sequence[Prepared]) -> list[Coordinate]:
        number = len(self.writes)
        self.writes.append([record.packed for record in batch])
        self.begun.set()
        await self.may_end.wait()
        if number in self.failing:
            raise LogUnavailable("away")
        self._end += len(batch)
        return [Coordinate(*AT, offset) for offset in range(self._end - len(batch), self._end)]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest_asyncio.fixture
async def commits(disk: Disk) -> AsyncIterator[GroupCommit]:
    commits = GroupCommit(disk.write)
    commits.start()
    yield commits
    disk.may_end.set()
    await commits.close()


def prepared(*values: bytes) -> list[Prepared]:
    return [Prepared(AT, b"k", value) for value in values]


def offsets(appended: asyncio.Task[list[Coordinate]]) -> list[int]:
    return [coordinate.offset for coordinate in appended.result()]


async def test_what_comes_during_a_write_goes_into_the_next(commits: GroupCommit, disk: Disk) -> None:
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(commits.append(prepared(b"1")))
        await disk.begun.wait()
        later = [tasks.create_task(commits.append(prepared(b"%d" % n, b"+"))) for n in range(2, 5)]
        await asyncio.sleep(0)
        disk.may_end.set()

    assert disk.writes == [[b"1"], [b"2", b"+", b"3", b"+", b"4", b"+"]]
    assert [offsets(task) for task in (first, *later)] == [[0], [1, 2], [3, 4], [5, 6]]


async def test_a_large_append_takes_several_writes(commits: GroupCommit, disk: Disk) -> None:
    disk.may_end.set()

    coordinates = await commits.append(prepared(*[b"x"] * (2 * MAX_RECORDS + 1)))

    assert [len(write) for write in disk.writes] == [MAX_RECORDS, MAX_RECORDS, 1]
    assert [coordinate.offset for coordinate in coordinates] == list(range(2 * MAX_RECORDS + 1))


async def test_a_failed_write_fails_those_in_it_and_nobody_else(commits: GroupCommit, disk: Disk) -> None:
    disk.failing = {0}
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(failure_of(commits.append(prepared(*[b"x"] * (MAX_RECORDS + 1)))))
        await disk.begun.wait()
        other = tasks.create_task(commits.append(prepared(b"other")))
        disk.may_end.set()

    assert isinstance(failing.result(), LogUnavailable)
    assert disk.writes[1] == [b"other"]  # the rest of the failed append is not written
    assert offsets(other) == [0]


async def test_an_append_that_fails_says_which_of_it_is_written(commits: GroupCommit, disk: Disk) -> None:
    disk.failing = {1}
    disk.may_end.set()
    with pytest.raises(PartlyAppended) as raised:
        await commits.append(prepared(*[b"x"] * (MAX_RECORDS + 1)))
    assert raised.value.places == {number: Coordinate(*AT, number) for number in range(MAX_RECORDS)}


async def test_a_caller_that_went_away_harms_nobody(commits: GroupCommit, disk: Disk) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(commits.append(prepared(b"1")))
        await disk.begun.wait()
        impatient = tasks.create_task(commits.append(prepared(b"2")))
        patient = tasks.create_task(commits.append(prepared(b"3")))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait([impatient])
        disk.may_end.set()

    assert disk.writes == [[b"1"], [b"3"]]
    assert offsets(patient) == [1]


async def test_close_ends_the_write_under_way_and_refuses_the_rest(commits: GroupCommit, disk: Disk) -> None:
    async with asyncio.TaskGroup() as tasks:
        written = tasks.create_task(commits.append(prepared(b"1")))
        await disk.begun.wait()
        waiting = tasks.create_task(failure_of(commits.append(prepared(b"2"))))
        closing = tasks.create_task(commits.close())
        await asyncio.sleep(0)
        disk.may_end.set()
        await closing

    assert offsets(written) == [0]
    assert disk.writes == [[b"1"]]
    assert isinstance(waiting.result(), LogUnavailable)
    with pytest.raises(LogUnavailable):
        await commits.append(prepared(b"3"))


async def failure_of(append: Awaitable[list[Coordinate]]) -> LogUnavailable:
    with pytest.raises(LogUnavailable) as failure:
        await append
    return failure.value
