"""Contract tests of the state port: the newest message of each key, and the messages that it supersedes."""

from relay.state.rows import TAGS, Superseded, Superseding
from tests.contract.state_contract import Rig, row

KEEP_S = 100.0
KEY, OTHER = b"k" * 12, b"o" * 12


def one(number: int, *, key: bytes = KEY, partition: int = 0, at_ms: int = 0, window_s: float = 0.0) -> Superseding:
    place = partition, number, at_ms or number
    return Superseding(key, row(number), *place, f"m-{number}", KEEP_S, window_s)


def newest(*numbers: int, wait_s: float = 0.0) -> Superseded:
    """The reply for a newest message, which supersedes these."""
    return Superseded(None, tuple(row(number).digest for number in numbers), wait_s)


async def superseded(rig: Rig, *messages: Superseding) -> list[Superseded]:
    """The replies, without their times."""
    found = await rig.state.supersede(messages)
    assert all(one.at_ms == found[0].at_ms > 0 for one in found)
    return [one._replace(at_ms=0) for one in found]


class SupersedingContract:
    async def test_the_newest_of_a_key_takes_the_place_of_the_one_before_it(self, rig: Rig) -> None:
        assert await superseded(rig, one(1)) == [newest()]
        assert await superseded(rig, one(2), one(3, key=OTHER)) == [newest(1), newest()]
        assert await superseded(rig, one(4)) == [newest(1, 2)]
        assert await superseded(rig, one(4)) == [newest(1, 2)], "a repeat"
        assert await superseded(rig, one(5)) == [newest(1, 2, 4)]
        assert await superseded(rig, one(6)) == [newest(2, 4, 5)], "the last ones"

    async def test_of_a_call_only_the_newest_takes_the_place_of_those_before_it(self, rig: Rig) -> None:
        """However many there are: after a crash, they are read again."""
        await superseded(rig, one(1))
        first = [Superseded("m-6")] * 4 + [newest(1)]
        assert await superseded(rig, *map(one, range(2, 7))) == first
        assert await superseded(rig, *map(one, range(2, 7))) == first, "a repeat"
        again = [Superseded("m-6")] * 4 + [Superseded("m-7"), newest(1)]
        assert await superseded(rig, *map(one, range(2, 8))) == again, "with one more"

    async def test_an_older_one_that_comes_late_is_replaced(self, rig: Rig) -> None:
        assert await superseded(rig, one(2), one(1)) == [newest(), Superseded("m-2")]
        assert await superseded(rig, one(2)) == [newest()]

    async def test_between_partitions_the_time_counts(self, rig: Rig) -> None:
        await superseded(rig, one(5, at_ms=1000))
        earlier, later = one(9, partition=1, at_ms=999), one(1, partition=1, at_ms=1001)
        assert await superseded(rig, earlier, later) == [Superseded("m-5"), newest(5)]

    async def test_of_two_with_the_same_time_one_is_the_newest_however_often_they_are_read(self, rig: Rig) -> None:
        """Otherwise, if a process dies, each may end as replaced by the other one."""
        low, high = one(1, partition=0, at_ms=1000), one(2, partition=1, at_ms=1000)
        assert await superseded(rig, low) == [newest()]
        assert await superseded(rig, high) == [newest(1)]
        assert await superseded(rig, low) == [Superseded("m-2")]
        assert await superseded(rig, low, high) == [Superseded("m-2"), newest(1)]

    async def test_it_is_known_for_as_long_as_an_older_one_may_come(self, rig: Rig) -> None:
        await superseded(rig, one(2))
        await rig.elapse(KEEP_S - 1)
        assert await superseded(rig, one(1)) == [Superseded("m-2")]
        await rig.elapse(2)
        assert await superseded(rig, one(1)) == [newest()]

    async def test_a_window_is_opened_by_the_first_and_has_one_newest(self, rig: Rig) -> None:
        assert await superseded(rig, one(1, window_s=10)) == [newest(wait_s=10)]
        await rig.elapse(4)
        assert await superseded(rig, one(2, window_s=10)) == [newest(1, wait_s=6)]
        await rig.elapse(6)
        assert await superseded(rig, one(2, window_s=10)) == [newest(1)], "its window has closed"
        assert await superseded(rig, one(3, window_s=10)) == [newest(1, wait_s=10)], "2 stays as it is"
        await rig.elapse(1)
        assert await superseded(rig, one(4, window_s=10)) == [newest(1, 3, wait_s=9)]

    async def test_a_row_that_may_have_been_lost_is_not_replaced(self, rig: Rig) -> None:
        """The message may have been sent before the loss. One that arrived after the loss was not."""
        await superseded(rig, one(1))
        await rig.lose_and_recover(in_doubt_s=10)
        await rig.state.close_gaps(await rig.state.gaps(range(TAGS)))
        after_ms = (await rig.state.supersede([one(0, key=OTHER)]))[0].at_ms
        assert await superseded(rig, one(1), one(2)) == [newest(), newest()]
        assert await superseded(rig, one(3, at_ms=after_ms)) == [newest()]
        assert await superseded(rig, one(4, at_ms=after_ms)) == [newest(3)]
        await rig.elapse(11)
        assert await superseded(rig, one(5)) == [newest(3, 4)]
