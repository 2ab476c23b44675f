"""Contract tests of the state port: consecutive numbers of a receiver's deliveries, and the list of gaps."""

from relay.domain.numbering import NumberGap, Numbering
from relay.state.attempts import BeginRequest, Change, Go, NumberRequest
from relay.state.port import IntakeRequest
from relay.state.replies import answered, of
from relay.state.rows import Mark, Result, Row, RowKey, Stage
from tests.contract.state_contract import ANSWER, LANE, Rig, ask, begun, outcome, row
from tests.expecting import present

FRESH = NumberRequest(0, 1)
DEAD = Result("dead", 400, reason="rejected")


def numbered(number: int, token: bytes = b"t1", **changes: object) -> BeginRequest:
    return ask(row(number), token, number=FRESH, **changes)


async def start(rig: Rig, number: int, token: bytes = b"t1") -> object:
    return await begun(rig.state, row(number), token, number=FRESH)


async def end(rig: Rig, number: int, reason: str | None = None, token: bytes = b"t1") -> Row:
    result = ANSWER if reason is None else Result("dead", 400, reason=reason)
    return await told(rig, row(number), token, result=result, reason=reason, number=FRESH)


async def told(rig: Rig, key: RowKey, token: bytes = b"t1", **changes: object) -> Row:
    """The row that the reply to this result has."""
    (found,) = await answered(rig.state.settle([outcome(key, Change.RESULT, token, **changes)]))
    return present(found)


class NumbersContract:
    async def test_deliveries_are_numbered_in_the_order_in_which_they_begin(self, rig: Rig) -> None:
        assert [await start(rig, number) for number in (7, 3, 5)] == [Go(1, 0.0, number) for number in (1, 2, 3)]
        assert await start(rig, 3) == Go(1, 0.0, 2), "a repeat has the same one"
        (other,) = await answered(rig.state.begin(of(LANE, [ask(row(1, "cd"), number=NumberRequest(0, 900))])))
        assert other == Go(1, 0.0, 900), "each receiver has its own; the first is as high as its caller asks"
        (found,) = await answered(rig.state.intake(of(LANE, [IntakeRequest(row(3), 0, None)])))
        assert (found.number, found.numbering) == (2, None)
        assert await begun(rig.state, row(9)) == Go(1, 0.0), "one that is not numbered"

    async def test_the_numbers_of_a_receiver_can_be_read(self, rig: Rig) -> None:
        assert await rig.state.numbering("r:ci") is None
        for number in (1, 2, 3):
            await start(rig, number)
        assert (await end(rig, 2, "rejected")).numbering == await rig.state.numbering("r:ci")
        assert await rig.state.numbering("r:ci") == Numbering(3, ((1, 1), (3, 3)), (NumberGap(2, 2, "rejected"),))

    async def test_the_next_owner_of_a_name_hears_of_no_gaps_of_the_former_one(self, rig: Rig) -> None:
        for number in (1, 2, 3):
            await start(rig, number)
        await end(rig, 1, "rejected")
        await end(rig, 3, "rejected")
        await rig.state.forget_endpoint("r:ci")
        assert await rig.state.numbering("r:ci") == Numbering(3, ((2, 2),), ())
        assert await start(rig, 4) == Go(1, 0.0, 4)

    async def test_another_attempt_has_the_number_of_the_first(self, rig: Rig) -> None:
        await start(rig, 1)
        for change, token in ((Change.RELEASED, b"t1"), (Change.RETRY, b"t2")):
            assert await answered(rig.state.settle([outcome(row(1), change, token)])) == [None]
            assert (await start(rig, 1, token[:1] + b"%d" % (int(token[1:]) + 1)))[2] == 1  # type: ignore[index]
        assert await start(rig, 2) == Go(1, 0.0, 2)

    async def test_a_released_one_keeps_its_number_for_as_long_as_it_waits(self, rig: Rig) -> None:
        await start(rig, 1)
        await answered(rig.state.settle([outcome(row(1), Change.RELEASED)]))
        await rig.elapse(300)
        assert await start(rig, 2) == Go(1, 0.0, 2)
        assert await start(rig, 1, b"t2") == Go(1, 0.0, 1)

    async def test_an_outcome_says_which_numbers_have_no_end(self, rig: Rig) -> None:
        for number in (1, 2, 3, 4, 5):
            await start(rig, number)
        assert (await end(rig, 3)).numbering == Numbering(5, ((1, 2), (4, 5)))
        assert (await end(rig, 3)).numbering == Numbering(5, ((1, 2), (4, 5))), "a repeat"
        assert (await end(rig, 4)).numbering == Numbering(5, ((1, 2), (5, 5)))
        assert (await end(rig, 1)).numbering == Numbering(5, ((2, 2), (5, 5)))
        assert (await end(rig, 5)).numbering == Numbering(5, ((2, 2),))
        assert (await end(rig, 2)).numbering == Numbering(5)
        (found,) = await answered(rig.state.intake(of(LANE, [IntakeRequest(row(4), 0, None)])))
        assert (found.stage, found.number, found.numbering) == (Stage.RESULT, 4, Numbering(5)), "for a later owner"
        await answered(rig.state.mark([Mark(row(4), 0, Stage.DONE, (0, 1))]))
        (found,) = await answered(rig.state.peek([row(4)]))
        assert (found.stage, found.number) == (Stage.DONE, None)

    async def test_what_is_given_up_is_a_gap_until_a_delivery_has_named_it(self, rig: Rig) -> None:
        for number in (1, 2, 3, 4):
            await start(rig, number)
        await end(rig, 1)
        for number in (2, 3):
            assert (await end(rig, number, "rejected")).numbering.gaps[0].reason == "rejected"  # type: ignore[union-attr]
        gap = NumberGap(2, 3, "rejected")
        assert (await end(rig, 4)).numbering == Numbering(4, (), (gap,)), "it was begun before"
        assert await start(rig, 5) == Go(1, 0.0, 5, (gap,))
        assert await start(rig, 5) == Go(1, 0.0, 5, (gap,)), "a repeat"
        await answered(rig.state.settle([outcome(row(5), Change.RETRY)]))
        assert await start(rig, 6) == Go(1, 0.0, 6, (gap,)), "the first may fail"
        assert (await end(rig, 6)).numbering == Numbering(6, ((5, 5),))
        assert await start(rig, 7) == Go(1, 0.0, 7)

    async def test_however_many_gaps_there_are_each_number_is_named(self, rig: Rig) -> None:
        await answered(rig.state.begin(of(LANE, [numbered(number) for number in range(1, 251)])))
        ends = [
            outcome(row(number), Change.RESULT, result=DEAD, reason=("rejected", "expired")[number % 2], number=FRESH)
            for number in range(1, 251)
            if number not in (2, 7)
        ]
        await answered(rig.state.settle(ends))
        await end(rig, 7)
        named = set[int]()
        for number in range(251, 260):
            found = await start(rig, number)
            assert isinstance(found, Go)
            assert len(found.gaps) <= 20
            named.update(each for gap in found.gaps for each in range(gap.first, gap.last + 1))
            await end(rig, number)
        assert named - {7} == set(range(1, 251)) - {2, 7}, "that of 2 may still arrive, and that of 7 has arrived"

    async def test_a_gap_that_has_grown_since_it_was_named_is_named_again(self, rig: Rig) -> None:
        await start(rig, 1)
        await end(rig, 1, "rejected")
        for number in (2, 3):
            assert await start(rig, number) == Go(1, 0.0, number, (NumberGap(1, 1, "rejected"),))
        await end(rig, 2, "rejected")
        assert (await end(rig, 3)).numbering == Numbering(3, (), (NumberGap(1, 2, "rejected"),))
        assert await start(rig, 4) == Go(1, 0.0, 4, (NumberGap(1, 2, "rejected"),))
        assert (await end(rig, 4)).numbering == Numbering(4)

    async def test_one_that_ends_without_a_request_gets_its_number_then(self, rig: Rig) -> None:
        assert await end(rig, 1, "expired", b"") == Row(
            Stage.RESULT,
            last_status=None,
            reason="expired",
            result=Result("dead", 400, reason="expired"),
            number=1,
            numbering=Numbering(1, (), (NumberGap(1, 1, "expired"),)),
        )
        found = await end(rig, 2, None, b"")
        assert found.numbering == Numbering(2, (), (NumberGap(1, 1, "expired"), NumberGap(2, 2, "delivered")))

    async def test_a_replay_that_the_receiver_confirms_leaves_a_gap(self, rig: Rig) -> None:
        """The receiver may have the message from before the replay. Then neither this number nor its gaps arrived."""
        await start(rig, 1)
        await end(rig, 1, "rejected")
        first, second = NumberGap(1, 1, "rejected"), NumberGap(2, 2, "delivered")
        assert await begun(rig.state, row(2), generation=1, number=FRESH) == Go(1, 0.0, 2, (first,))
        found = await told(rig, row(2), b"", result=ANSWER, generation=1, number=NumberRequest(2, 0))
        assert found.numbering == Numbering(2, (), (first, second))
        assert await start(rig, 3) == Go(1, 0.0, 3, (first, second))
        found = await told(rig, row(3), b"", result=ANSWER, number=NumberRequest(3, 0))
        assert found.numbering == Numbering(3), "one that was sent for the first time has arrived"

    async def test_a_number_that_the_record_has_is_kept(self, rig: Rig) -> None:
        await start(rig, 1)
        known = await begun(rig.state, row(2), number=NumberRequest(9, 1))
        assert known == Go(1, 0.0, 9)
        found = await told(rig, row(2), result=DEAD, reason="rejected", number=NumberRequest(9, 1))
        assert (found.number, found.numbering) == (9, Numbering(1, ((1, 1),)))
        assert await start(rig, 3) == Go(1, 0.0, 2)

    async def test_a_number_that_a_lost_state_gave_is_in_use_again(self, rig: Rig) -> None:
        """Its delivery is in the memory of a process, and the log has no end of it."""
        assert await begun(rig.state, row(2), number=NumberRequest(4, 0)) == Go(1, 0.0, 4)
        found = await told(rig, row(2), result=DEAD, reason="rejected", number=NumberRequest(4, 0))
        assert (found.number, found.numbering) == (4, Numbering(4, (), (NumberGap(4, 4, "rejected"),)))
        assert await start(rig, 3) == Go(1, 0.0, 5, (NumberGap(4, 4, "rejected"),))
        assert await begun(rig.state, row(6), number=NumberRequest(3, 0)) == Go(1, 0.0, 3), "a lower one as well"

    async def test_after_a_loss_the_first_number_names_those_before_it_as_a_gap(self, rig: Rig) -> None:
        """A request may have had them, and no process knows."""
        gap = NumberGap(1, 6, "renumbered")
        await rig.lose_and_recover(in_doubt_s=100)
        assert await begun(rig.state, row(1), number=NumberRequest(0, 7)) == Go(1, 0.0, 7, (gap,))
        assert await begun(rig.state, row(2), number=NumberRequest(0, 9)) == Go(1, 0.0, 8, (gap,))
        found = await told(rig, row(1, "cd"), result=DEAD, reason="rejected", number=NumberRequest(0, 3))
        gaps = (NumberGap(1, 2, "renumbered"), NumberGap(3, 3, "rejected"))
        assert found.numbering == Numbering(3, (), gaps)

    async def test_one_that_is_given_up_without_an_outcome_has_an_end(self, rig: Rig) -> None:
        await start(rig, 1)
        await answered(rig.state.mark([Mark(row(1), 0, Stage.FAILED, (0, 1))]))
        assert await start(rig, 2) == Go(1, 0.0, 2, (NumberGap(1, 1, "poison"),))

    async def test_those_of_one_request_name_the_gaps_once(self, rig: Rig) -> None:
        await start(rig, 1)
        await end(rig, 1, "gone")
        gap = NumberGap(1, 1, "gone")
        asks = [numbered(2), numbered(3, rides=True)]
        assert await answered(rig.state.begin(of(LANE, asks))) == [Go(1, 0.0, 2, (gap,)), Go(1, 0.0, 3)]

    async def test_one_that_shares_the_request_of_another_has_named_no_gaps(self, rig: Rig) -> None:
        """An attempt of its own had named some, and failed: its success is none of theirs."""
        await start(rig, 1)
        await end(rig, 1, "gone")
        gap = NumberGap(1, 1, "gone")
        assert await start(rig, 2) == Go(1, 0.0, 2, (gap,))
        await answered(rig.state.settle([outcome(row(2), Change.RETRY)]))
        asks = [numbered(3), numbered(2, b"t2", rides=True)]
        assert await answered(rig.state.begin(of(LANE, asks))) == [Go(1, 0.0, 3, (gap,)), Go(2, 0.0, 2)]
        await end(rig, 2, token=b"t2")
        await answered(rig.state.settle([outcome(row(3), Change.RETRY)]))
        assert await start(rig, 3, b"t2") == Go(2, 0.0, 3, (gap,))

    async def test_numbers_are_restored_unless_higher_ones_are_in_use(self, rig: Rig) -> None:
        kept = Numbering(7, ((5, 5),), (NumberGap(3, 4, "expired"), NumberGap(6, 6, "renumbered")))
        await rig.lose()
        await rig.state.lost()
        await rig.state.number_again({"r:ci": kept, "r:cd": Numbering(2)})
        await rig.state.ready(range(64), in_doubt_s=0)
        assert await begun(rig.state, row(5), number=NumberRequest(5, 1)) == Go(1, 0.0, 5, kept.gaps[:1])
        assert await start(rig, 8) == Go(1, 0.0, 8, kept.gaps)
        await rig.state.number_again({"r:ci": kept})
        assert await start(rig, 9) == Go(1, 0.0, 9, kept.gaps)
        assert (await end(rig, 9)).numbering == Numbering(9, ((5, 5), (8, 8)))
        await rig.state.number_again({"r:ci": Numbering(9, (), (NumberGap(7, 8, "expired"),))})
        assert await start(rig, 10) == Go(1, 0.0, 10, (NumberGap(8, 8, "expired"),)), "the outcome of 8 was lost"
