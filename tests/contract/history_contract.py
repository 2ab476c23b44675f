"""Contract tests of the history port. Subclasses provide the fixture `history`: an empty, started one."""

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from relay.domain.erasure import Erasure
from relay.domain.errors import HistoryMoved
from relay.domain.identity import MessageId, webhook_id
from relay.domain.receiver import Life
from relay.domain.state import Status
from relay.domain.statistics import OUTCOMES, Counted
from relay.domain.topics import DAY_S
from relay.history.port import (
    AttemptQuery,
    By,
    CountQuery,
    DeliveryFound,
    FactBatch,
    History,
    HistoryPage,
    MessageFound,
    MessageQuery,
    SourceSet,
    SpanCount,
    Visible,
    clean,
)
from relay.history.sql import MOST_BRANCHES
from tests.contract.history_facts import BACK, FROM, NOON, TRIED, Fact, arrival, attempt, ending, put
from tests.expecting import present


async def names(history: History, *, limit: int = 100, **query: Any) -> list[str]:
    """The ids of the found messages, in order."""
    page = await history.messages(MessageQuery(**query), limit=limit)
    return [one.arrival.message.message_id for one in page.items]


async def delivery(history: History, message: str, receiver: str = "ci") -> DeliveryFound:
    found = present(await history.message(MessageId("shop", message)))
    return next(one for one in found.deliveries if one.receiver == receiver)


async def status(history: History, message: str, receiver: str = "ci") -> Status:
    return (await delivery(history, message, receiver)).status


def ids(page: HistoryPage[MessageFound]) -> list[str]:
    return [one.arrival.message.message_id for one in page.items]


def scattered(*facts: Fact) -> list[Fact]:
    """The facts, each in a separate partition, so that they can be written in any order."""
    found: list[Fact] = []
    for partition, fact in enumerate(facts):
        if isinstance(fact, tuple):
            found.append((fact[0]._replace(partition=partition), fact[1]))
        else:
            found.append(structs.replace(fact, at=fact.at._replace(partition=partition)))
    return found


LIFE: Final = scattered(
    arrival(0, receivers=("ci", "cd")),
    arrival(1, name="m-0", receivers=("ci",)),
    *(attempt("m-0", offset=n, attempt=n + 1, status=503, at=n, reason=f"r{n}") for n in range(3)),
    attempt("m-0", offset=3, attempt=4, status=202, at=3),
    attempt("m-0", offset=4, attempt=1, kind="callback", at=20),
    attempt("m-0", offset=5, attempt=1, generation=1, status=500, at=60),
    attempt("m-0", offset=6, receiver="cd", at=4),
    ending("m-0", offset=0, at=10, attempts=4),
    ending("m-0", offset=0, status="failed", reason="callback_exhausted", at=30, attempts=4),
    ending("m-0", offset=1, status="failed", reason="gone", at=70, generation=1),
    ending("m-0", offset=2, status="failed", reason="discarded", at=80, generation=1),
    ending("m-0", offset=1, receiver="cd", at=5),
)


class HistoryContract:
    # deliveries

    async def test_a_message_is_found_as_it_came(self, history: History) -> None:
        told = arrival(1, headers={"x-shop": "7"}, body=b'{"a": 1', receivers=("ci",))
        await put(history, told)

        found = present(await history.message(MessageId("shop", "m-1")))

        kept = found.arrival
        assert (kept.message, kept.at, kept.received_at) == (told.message, told.at, told.received_at)
        assert (kept.event_type, kept.content_type, kept.size) == ("order.paid", "application/json", 100)
        assert (dict(kept.headers), kept.body) == ({"x-shop": "7"}, b'{"a": 1')
        assert found.deliveries == (DeliveryFound("ci", "arrived", 0, 0, None, None, None, NOON + 1),)
        assert await history.message(MessageId("shop", "m-2")) is None

    async def test_what_is_not_kept_is_none(self, history: History) -> None:
        await put(history, arrival(1, event_type=None, content_type=None))

        found = present(await history.message(MessageId("shop", "m-1")))

        kept = found.arrival
        assert (kept.event_type, kept.content_type, dict(kept.headers), kept.body) == (None, None, {}, None)
        assert found.deliveries == ()

    async def test_a_delivery_goes_from_status_to_status(self, history: History) -> None:
        await put(history, arrival(1), attempt("m-1", offset=0, status=503, reason="not_processed", detail="busy"))
        assert await delivery(history, "m-1") == DeliveryFound(
            "ci", "arrived", 0, 1, 503, "not_processed", "busy", NOON + 0.02
        )

        await put(history, attempt("m-1", offset=1, attempt=2, status=202, at=5))
        assert await delivery(history, "m-1") == DeliveryFound(
            "ci", "delivered_to_receiver", 0, 2, 202, None, None, NOON + 5.02
        )

        await put(history, ending("m-1", offset=0, attempts=2, at=9))
        assert await delivery(history, "m-1") == DeliveryFound(
            "ci", "response_received_from_receiver", 0, 2, 200, None, None, NOON + 9
        )

        await put(history, attempt("m-1", offset=2, kind="callback", at=10, outcome="retry", status=500))
        assert await status(history, "m-1") == "response_received_from_receiver"
        await put(history, attempt("m-1", offset=3, kind="callback", at=11, attempt=2))
        assert await delivery(history, "m-1") == DeliveryFound(
            "ci", "response_delivered_to_sender", 0, 2, 200, None, None, NOON + 11.02
        )

    async def test_a_dead_letter_says_why_it_failed(self, history: History) -> None:
        await put(history, arrival(1), attempt("m-1", offset=0, status=422, code="rejected", outcome="dead"))

        await put(history, ending("m-1", offset=0, status="failed", reason="rejected", detail="422", last_status=422))

        assert await delivery(history, "m-1") == DeliveryFound("ci", "failed", 0, 1, 422, "rejected", "422", NOON + 1)

    async def test_a_notice_that_nobody_took_hides_no_failure(self, history: History) -> None:
        await put(
            history,
            arrival(1),
            ending("m-1", offset=0, status="failed", reason="gone", at=1),
            ending("m-1", offset=1, status="failed", reason="callback_exhausted", at=9),
        )

        assert (await delivery(history, "m-1")).reason == "gone"

    async def test_a_replay_begins_anew(self, history: History) -> None:
        await put(history, arrival(1), ending("m-1", offset=0, status="failed", reason="gone", attempts=9))

        await put(history, attempt("m-1", offset=0, generation=1, status=202, at=60))

        found = await delivery(history, "m-1")
        assert (found.status, found.generation, found.attempts, found.reason) == ("delivered_to_receiver", 1, 1, None)

    async def test_of_a_name_only_what_its_life_of_now_has_is_shown(self, history: History) -> None:
        places = Life("new", FROM.topic, (3,))
        seen = Visible((), ("ci",), {"ci": places})
        await put(
            history,
            arrival(1, receivers=("ci",)),
            arrival(2, receivers=("ci", "cd")),
            arrival(3, receivers=("ci",)),
            arrival(4, receivers=("ci",)),
            attempt("m-1", offset=0, life="old"),
            attempt("m-2", offset=1),
            attempt("m-3", offset=2, life="new"),
            attempt("m-3", offset=3, life="new", kind="callback"),
            ending("m-1", offset=0, life="old"),
            ending("m-2", offset=1, receiver="cd"),
            ending("m-3", offset=2, life="new"),
        )

        assert await names(history, visible=seen) == ["m-4", "m-3"]
        assert await names(history, visible=seen, receiver="ci") == ["m-4", "m-3"]
        assert await names(history, visible=Visible((), ("ci", "cd"), {"ci": places})) == ["m-4", "m-3", "m-2"]
        assert await names(history, visible=Visible(receivers=("ci",))) == ["m-4", "m-2"]
        attempts = (await history.attempts(AttemptQuery(seen), limit=9)).items
        assert [(each.attempt.message_id, each.attempt.kind) for each in attempts] == [("m-3", "post")]
        for visible, sums in ((seen, [1]), (Visible(), [3])):
            counts = await history.counted(CountQuery("hour", NOON, NOON + 3_600, visible), most=9)
            assert [Counted(each.counts).attempts for each in counts] == sums

    async def test_a_replay_is_of_the_life_that_it_is_sent_in(self, history: History) -> None:
        await put(history, arrival(1, receivers=("ci",)), ending("m-1", offset=0, status="failed", life="old"))

        await put(history, attempt("m-1", offset=0, life="new", generation=1))
        await put(history, attempt("m-1", offset=1, life="old"))

        assert (await delivery(history, "m-1")).life == "new"

    async def test_messages_are_found_by_their_numbers(self, history: History) -> None:
        """Each record of a delivery has its number: that of an attempt may be lost, and that of the end comes later."""
        lives = Visible((), ("ci",), {"ci": Life("b")})
        await put(
            history,
            attempt("m-1", offset=0, status=503, number=7, life="b"),
            attempt("m-2", offset=1, number=9, life="b"),
            attempt("m-3", offset=2, life="b"),
            attempt("m-4", offset=3, number=10, receiver="cd", life="b"),
            attempt("m-5", offset=4, number=10, life="a"),
            ending("m-3", offset=0, number=8, life="b"),
            ending("m-6", offset=1, number=11),
        )
        await put(history, attempt("m-1", offset=5, generation=1, life="b"), attempt("m-2", offset=6, number=12))
        found = await history.numbered("ci", lives, after=6, limit=10)
        assert [(number, message.message_id) for number, message in found] == [
            (7, "m-1"),
            (8, "m-3"),
            (11, "m-6"),
            (12, "m-2"),
        ]
        assert [number for number, _ in await history.numbered("ci", lives, after=7, limit=2)] == [8, 11]
        assert await history.numbered("ci", lives, after=2**70, limit=2) == []

    async def test_an_attempt_before_its_message_is_found_with_it(self, history: History) -> None:
        await put(history, attempt("m-1", offset=0))
        assert await history.message(MessageId("shop", "m-1")) is None
        assert await names(history, receiver="ci") == []

        await put(history, arrival(1))

        assert await names(history, receiver="ci") == ["m-1"]

    async def test_of_an_id_that_came_twice_the_first_counts(self, history: History) -> None:
        await put(history, arrival(5, name="m", receivers=("ci",)), arrival(2, name="m", size=7, receivers=("cd",)))
        await put(history, arrival(9, name="m", receivers=("ci",)))

        assert await names(history) == ["m"]
        found = present(await history.message(MessageId("shop", "m")))
        assert (found.arrival.size, found.arrival.at.offset) == (7, 2)
        assert [one.receiver for one in found.deliveries] == ["cd", "ci"]
        assert await names(history, receiver="ci", since=NOON + 4) == []

    # idempotence

    async def test_the_same_batch_twice_is_there_once(self, history: History) -> None:
        facts = (arrival(1), attempt("m-1", offset=0), ending("m-1", offset=0))
        await put(history, *facts)
        once = await everything(history)

        await put(history, *facts)

        assert await everything(history) == once
        assert await history.next_offsets() == {FROM: 2, TRIED: 1, BACK: 1}

    async def test_what_a_former_owner_writes_late_does_no_harm(self, history: History) -> None:
        await put(history, *(attempt("m-1", offset=offset, attempt=offset + 1) for offset in range(4)))
        once = await everything(history)

        await put(history, *(attempt("m-1", offset=offset, attempt=offset + 1) for offset in range(2)))
        assert await everything(history) == once

        await put(history, *(attempt("m-1", offset=offset, attempt=offset + 1) for offset in range(2, 6)))
        page = await history.attempts(AttemptQuery(), limit=100)
        assert len(page.items) == 6
        assert sum(Counted(one.counts).attempts for one in await spans(history, "hour")) == 6
        assert await history.next_offsets() == {TRIED: 6}

    async def test_one_that_has_less_than_it_had_says_so(self, history: History) -> None:
        await put(history, arrival(1))
        await history.clear()

        assert await history.next_offsets() == {}
        with pytest.raises(HistoryMoved):
            await history.write(FactBatch([arrival(2)]), {FROM: 3}, {FROM: 2})
        assert await names(history) == []

    async def test_what_the_log_has_lost_is_skipped(self, history: History) -> None:
        await history.skip({FROM: 7})
        await history.write(FactBatch([arrival(7)]), {FROM: 8}, {FROM: 7})
        await history.skip({FROM: 3})

        assert await history.next_offsets() == {FROM: 8}
        assert await names(history) == ["m-7"]

    async def test_other_records_at_offsets_that_were_written_are_taken_after_a_rewind(self, history: History) -> None:
        """The topics were created again."""
        await put(history, arrival(7), attempt("m-7", offset=3))
        before = await history.next_offsets()
        await history.rewind(dict.fromkeys(before, 0))
        assert await history.next_offsets() == dict.fromkeys(before, 0)

        await put(history, arrival(2), attempt("m-2", offset=3, at=60))

        assert await names(history) == ["m-7", "m-2"]
        assert {"m-2"} <= {one.attempt.message_id for one in (await history.attempts(AttemptQuery(), limit=9)).items}

    @given(st.permutations(range(len(LIFE))), st.lists(st.integers(0, len(LIFE) - 1), max_size=5), st.integers(1, 5))
    @settings(max_examples=40)
    async def test_the_order_of_what_is_told_does_not_matter(
        self, history: History, order: list[int], again: list[int], cut: int
    ) -> None:
        """Shuffled, in batches, and some written twice, the facts give the same rows as in one batch."""
        await history.clear()
        await put(history, *LIFE)
        expected = await everything(history)

        await history.clear()
        for start in range(0, len(order), cut):
            await put(history, *(LIFE[place] for place in order[start : start + cut]))
        await put(history, *(LIFE[place] for place in again))

        assert await everything(history) == expected

    # search

    async def test_the_newest_message_comes_first_and_pages_go_on_behind_it(self, history: History) -> None:
        await put(history, *(arrival(number) for number in range(7)))

        first = await history.messages(MessageQuery(), limit=3)
        await put(history, *(arrival(number) for number in range(7, 9)))
        second = await history.messages(MessageQuery(), limit=3, cursor=first.cursor)
        third = await history.messages(MessageQuery(), limit=3, cursor=second.cursor)

        assert ids(first) + ids(second) + ids(third) == ["m-6", "m-5", "m-4", "m-3", "m-2", "m-1", "m-0"]
        assert third.cursor is None

    async def test_pages_of_what_came_at_once_leave_nothing_out(self, history: History) -> None:
        await put(history, *(arrival(number, at=0, receivers=("ci", "cd")) for number in range(7)))

        for query in (MessageQuery(), MessageQuery(receiver="ci"), MessageQuery(status="arrived")):
            found: list[str] = []
            cursor = None
            while len(found) < 7:
                page = await history.messages(query, limit=2, cursor=cursor)
                found, cursor = found + ids(page), page.cursor
            assert found == [f"m-{number}" for number in reversed(range(7))]
            assert cursor is None

    @pytest.mark.parametrize(
        "cursor",
        ["", "x", "WzEsMl0", "W10", "bnVsbA", "WyJhIiwiYiIsImMiXQ", "é", "WzEsMiwzXQ\n", "WzEsIlx1MDAwMCIsIm0iXQ"],
    )
    async def test_what_is_no_cursor_is_refused(self, history: History, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor"):
            await history.messages(MessageQuery(), limit=3, cursor=cursor)
        with pytest.raises(ValueError, match="cursor"):
            await history.attempts(AttemptQuery(), limit=3, cursor=cursor)

    async def test_messages_are_found_by_what_they_are(self, history: History) -> None:
        await put(
            history,
            arrival(1),
            arrival(2, source="shop-2", event_type="order.sent"),
            arrival(3, event_type="user.made"),
            arrival(4, event_type=None, name="x_%4"),
        )

        assert await names(history, source_id="shop") == ["x_%4", "m-3", "m-1"]
        assert await names(history, event_type="order.paid") == ["m-1"]
        assert await names(history, event_type="order.*") == ["m-2", "m-1"]
        assert await names(history, event_type="order*") == ["m-2", "m-1"]
        assert await names(history, event_type="ord") == []
        assert await names(history, event_type="*", source_id="shop-2") == ["m-2"]
        assert await names(history, id_prefix="m-") == ["m-3", "m-2", "m-1"]
        assert await names(history, id_prefix="x_%") == ["x_%4"]
        assert await names(history, id_prefix="_") == []
        assert await names(history, id_prefix=webhook_id("shop", "m-3")) == ["m-3"]
        assert await names(history, id_prefix=webhook_id("shop", "m-3")[:12]) == ["m-3"]
        assert await names(history, since=NOON + 2, until=NOON + 4) == ["m-3", "m-2"]

    async def test_messages_are_found_by_what_became_of_them(self, history: History) -> None:
        await put(history, *(arrival(number, receivers=("ci",)) for number in range(5)))
        await put(history, arrival(5, receivers=("ci", "cd")), arrival(6), arrival(7, at=5.5))
        await put(
            history,
            attempt("m-1", offset=0, status=202),
            attempt("m-2", offset=1),
            ending("m-2", offset=0),
            ending("m-3", offset=0, status="failed", reason="gone"),
            ending("m-5", offset=1, status="failed", reason="expired", receiver="cd"),
            ending("m-6", offset=2, status="failed", reason="invalid", receiver=""),
        )
        await put(history, ending("m-4", offset=1), attempt("m-4", offset=2, kind="callback"))

        assert await names(history, receiver="ci") == ["m-5", "m-4", "m-3", "m-2", "m-1", "m-0"]
        assert await names(history, receiver="cd") == ["m-5"]
        assert await names(history, status="arrived") == ["m-7", "m-5", "m-0"]
        assert await names(history, status="arrived", receiver="ci") == ["m-5", "m-0"]
        page = await history.messages(MessageQuery(status="arrived"), limit=2)
        assert ids(page) == ["m-7", "m-5"]
        assert ids(await history.messages(MessageQuery(status="arrived"), limit=2, cursor=page.cursor)) == ["m-0"]
        assert await names(history, status="delivered_to_receiver") == ["m-1"]
        assert await names(history, status="response_received_from_receiver") == ["m-2"]
        assert await names(history, status="response_delivered_to_sender") == ["m-4"]
        assert await names(history, status="failed") == ["m-6", "m-5", "m-3"]
        assert await names(history, status="done") == ["m-7", "m-2"]
        assert await names(history, status="failed", receiver="ci") == ["m-3"]
        assert await names(history, status="arrived", receiver="cd") == []
        assert await names(history, reason="gone") == ["m-3"]
        assert await names(history, reason="expired", receiver="ci") == []
        assert await names(history, status="failed", source_id="other") == []
        assert await names(history, status="failed", event_type="order*", since=NOON + 4) == ["m-6", "m-5"]

    async def test_messages_are_found_by_the_state_of_a_delivery(self, history: History) -> None:
        await put(history, *(arrival(number, receivers=("ci",)) for number in range(8)), arrival(8), arrival(9, at=5.5))
        await put(history, arrival(10, source="mine", receivers=("ci",)), arrival(11, receivers=("ci", "cd")))
        await put(
            history,
            attempt("m-1", offset=0, status=503, reason="not_processed"),
            attempt("m-2", offset=1, status=202),
            attempt("m-3", offset=2),
            ending("m-3", offset=0),
            ending("m-4", offset=1),
            attempt("m-4", offset=3, kind="callback"),
            ending("m-5", offset=0, status="failed", reason="gone"),
            ending("m-6", offset=1, status="failed", reason="discarded"),
            ending("m-7", offset=2, status="failed", reason="callback_rejected"),
            ending("m-8", offset=3, status="failed", reason="invalid", receiver=""),
            ending("m-10", source="mine", offset=2),
            ending("m-11", offset=4, status="failed", reason="discarded", receiver="cd"),
            attempt("m-11", offset=4, status=503),
        )
        mine, others = SourceSet(["mine"], excluded=False), SourceSet(["mine"])
        assert await names(history, state="queued") == ["m-9", "m-0"]
        assert await names(history, state="queued", receiver="ci") == ["m-0"]
        assert await names(history, state="retrying") == ["m-11", "m-1"]
        assert await names(history, state="awaiting_answer") == ["m-2"]
        assert await names(history, state="returned") == ["m-4"]
        assert await names(history, state="failed") == ["m-8", "m-7", "m-5"]
        assert await names(history, state="discarded") == ["m-11", "m-6", "m-9"]
        assert await names(history, state="discarded", receiver="ci") == ["m-6"]
        assert await names(history, state="failed", status="failed", reason="gone") == ["m-5"]
        assert await names(history, state="returning", answered_by=mine) == ["m-10"]
        assert await names(history, state="returning", answered_by=others) == ["m-3"]
        assert await names(history, state="delivered", answered_by=mine) == ["m-10"]
        assert await names(history, state="delivered", answered_by=SourceSet((), excluded=False)) == []
        assert await names(history, state="delivered") == ["m-10", "m-3"]
        page = await history.messages(MessageQuery(state="failed"), limit=2)
        assert ids(page) == ["m-8", "m-7"]
        assert ids(await history.messages(MessageQuery(state="failed"), limit=2, cursor=page.cursor)) == ["m-5"]
        of_cd = Visible(receivers=("cd",))
        assert await names(history, state="discarded", visible=of_cd) == ["m-11"]
        assert await names(history, state="retrying", visible=of_cd) == []

    async def test_a_post_that_does_not_count_is_no_attempt(self, history: History) -> None:
        await put(
            history,
            *(arrival(number, receivers=("ci",)) for number in (1, 2)),
            attempt("m-1", offset=0, status=503),
            attempt("m-1", offset=1, status=429, code="not_now", attempt=2, counted=False),
            attempt("m-2", offset=2, status=429, code="not_now", counted=False),
        )
        one, other = await delivery(history, "m-1"), await delivery(history, "m-2")
        assert (one.attempts, one.last_status, other.attempts, other.last_status) == (1, 429, 0, 429)
        assert await names(history, state="queued") == ["m-2"]
        assert await names(history, state="retrying") == ["m-2", "m-1"]

    async def test_messages_are_found_by_headers_and_payload(self, history: History) -> None:
        document = b'{"order": {"id": "A/1", "lines": [{"n": 2}, {"n": 1.50}], '
        document += b'"caf\xc3\xa9": "\\u00e9"}, "ok": true, "big": 1e2}'
        await put(
            history,
            arrival(1, headers={"x-shop": "7"}, body=document),
            arrival(2, headers={"x-shop": "8"}, body=b"\xff\x00 no JSON"),
            arrival(3, headers={}, body=b'{"order": {"id": "A/1"'),
            arrival(4, body=b"[" * 100_000),
            arrival(5, body=b'{"order": {"id": "A\\/1"}}'),
            arrival(6, body=b'{"order": {"id": ["A/1", null, NaN]}}'),
            arrival(7),
            arrival(8, body=b'{"n": 1e999999999}'),
        )

        assert await names(history, header=("X-Shop", "7")) == ["m-1"]
        assert await names(history, header=("x-none", "7")) == []
        assert await names(history, payload=("/order/id", "A/1")) == ["m-5", "m-1"]
        assert await names(history, payload=("/order/lines/0/n", "2")) == ["m-1"]
        assert await names(history, payload=("/order/lines/1/n", "1.50")) == ["m-1"]
        assert await names(history, payload=("/order/lines/-1/n", "1.50")) == []
        assert await names(history, payload=("/order/caf\u00e9", "\u00e9")) == ["m-1"]
        assert await names(history, payload=("/ok", "true")) == ["m-1"]
        assert await names(history, payload=("/big", "100")) == ["m-1"]
        assert await names(history, payload=("/order/id/0", "A/1"), header=("x-shop", "7")) == []
        assert await names(history, payload=("/order/id/0", "A/1")) == ["m-6"]
        assert await names(history, payload=("/n", "1")) == []
        assert await names(history, payload=("/order/id", "A/1"), status="failed") == []

    async def test_only_what_may_be_shown_is_found(self, history: History) -> None:
        await put(
            history, arrival(1, receivers=("ci", "cd")), arrival(2, source="shop-2", receivers=("cd",)), arrival(3)
        )
        await put(history, ending("m-1", offset=0, status="failed", reason="gone", receiver="cd"))

        def seen_by(*sources: str, receivers: tuple[str, ...] = ()) -> Visible:
            return Visible(sources, receivers)

        assert await names(history, visible=seen_by("shop")) == ["m-3", "m-1"]
        assert await names(history, visible=seen_by("shop*")) == ["m-3", "m-2", "m-1"]
        assert await names(history, visible=seen_by()) == []
        assert await names(history, visible=seen_by(receivers=("ci",))) == ["m-1"]
        assert await names(history, visible=seen_by(receivers=("ci", "cd"))) == ["m-2", "m-1"]
        assert await names(history, visible=seen_by("shop-2", receivers=("ci",))) == ["m-2", "m-1"]
        assert await names(history, visible=Visible(receivers=("ci",))) == ["m-1"]
        assert await names(history, visible=Visible(sources=("shop",))) == ["m-3", "m-1"]
        assert await names(history, visible=seen_by("shop"), status="arrived") == ["m-3", "m-1"]
        assert await names(history, visible=seen_by(receivers=("cd",)), status="arrived") == ["m-2"]
        assert await names(history, visible=seen_by(receivers=("ci",)), status="failed") == []
        assert await names(history, visible=seen_by("shop", receivers=("ci",)), status="failed") == ["m-1"]
        assert await names(history, visible=seen_by(receivers=("ci",)), receiver="cd") == []

        page = await history.messages(MessageQuery(visible=seen_by(receivers=("ci",))), limit=9)
        assert [one.receiver for one in page.items[0].deliveries] == ["ci"]
        page = await history.messages(MessageQuery(visible=seen_by("shop", receivers=("ci",))), limit=9)
        assert [one.receiver for one in page.items[1].deliveries] == ["cd", "ci"]

    async def test_of_many_receivers_the_newest_messages_come_first(self, history: History) -> None:
        """More receivers than a store queries at once, with few or many messages each; some messages went to all."""
        many = tuple(f"r-{number:03}" for number in range(2 * MOST_BRANCHES + 50))

        def some(number: int) -> tuple[str, ...]:
            return many if number % 50 == 0 else ("other",) if number % 7 == 0 else (many[number**2 % len(many)],)

        of_each = {f"m-{number}": some(number) for number in range(300)}
        await put(history, *(arrival(number, receivers=some(number), at=number // 2) for number in range(300)))
        await put(history, ending("m-100", offset=0, status="failed", reason="gone", receiver="r-249"))
        for seen in (Visible((), many), Visible(("none",), frozenset(many)), Visible((), (*many, "other"))):
            expected = [name for name in of_each if set(of_each[name]) & set(seen.receivers or ())]
            found, cursor = list[str](), None
            while not found or cursor is not None:
                page = await history.messages(MessageQuery(visible=seen), limit=40, cursor=cursor)
                found, cursor = found + ids(page), page.cursor
            assert found == sorted(expected, key=lambda name: (int(name[2:]) // 2, name), reverse=True)
        assert await names(history, visible=Visible((), many), status="failed") == ["m-100"]
        assert await names(history, visible=Visible((), many), since=NOON + 148, until=NOON + 149) == ["m-297", "m-296"]
        assert await names(history, visible=Visible((), many), id_prefix="m-25", limit=2) == ["m-258", "m-257"]
        assert (await names(history, visible=Visible(("shop",), many)))[:2] == ["m-299", "m-298"]

    async def test_of_many_receivers_the_present_lives_are_found(self, history: History) -> None:
        many = tuple(f"r-{number:03}" for number in range(MOST_BRANCHES + 1))
        await put(
            history,
            *(arrival(number, receivers=(many[number],)) for number in range(3)),
            ending("m-0", offset=0, receiver=many[0], life="present"),
            ending("m-1", offset=1, receiver=many[1], life="former"),
        )

        lives = dict.fromkeys(many, Life("present", FROM.topic, (2,)))
        assert await names(history, visible=Visible((), many, lives)) == ["m-2", "m-0"]

    # attempts

    async def test_attempts_are_found_newest_first(self, history: History) -> None:
        told = [
            attempt("m-1", offset=0, status=503, at=0),
            attempt("m-1", offset=1, attempt=2, at=5),
            attempt("m-2", offset=2, receiver="cd", status=None, code="ambiguous", at=3),
            attempt("m-1", offset=3, kind="callback", at=9),
            attempt("m-3", offset=4, kind="status", status=202, outcome="working", source="other", receiver="x", at=10),
        ]
        await put(history, *told)

        async def offsets(query: AttemptQuery) -> list[int]:
            return [one.at.offset for one in (await history.attempts(query, limit=10)).items]

        page = await history.attempts(AttemptQuery(), limit=10)
        assert [(one.at, one.attempt) for one in page.items] == [told[place] for place in (4, 3, 1, 2, 0)]
        assert await offsets(AttemptQuery(message=MessageId("shop", "m-1"))) == [3, 1, 0]
        assert await offsets(AttemptQuery(receiver="ci", kinds=["post"])) == [1, 0]
        assert await offsets(AttemptQuery(failed=True)) == [2, 0]
        assert await offsets(AttemptQuery(failed=False)) == [4, 3, 1]
        assert await offsets(AttemptQuery(since=NOON + 3, until=NOON + 9)) == [1, 2]
        assert await offsets(AttemptQuery(visible=Visible(("other",), ("cd",)))) == [4, 2]
        assert await offsets(AttemptQuery(visible=Visible(receivers=("ci",)))) == [1, 0]
        assert await offsets(AttemptQuery(visible=Visible(("shop",), ("ci",)))) == [3, 1, 2, 0]
        assert await offsets(AttemptQuery(visible=Visible((), ()))) == []
        assert await offsets(AttemptQuery(at=(0, 3))) == [3]
        assert await offsets(AttemptQuery(at=(1, 3))) == []
        assert await offsets(AttemptQuery(visible=Visible(receivers=("ci",)), at=(0, 3))) == []
        assert await offsets(AttemptQuery(message=MessageId("shop", "m-1"), behind=(0, 1))) == [3]
        assert await offsets(AttemptQuery(message=MessageId("shop", "m-1"), behind=(1, 9))) == [3, 1, 0]

    async def test_pages_of_attempts_leave_nothing_out(self, history: History) -> None:
        await put(history, *(attempt("m-1", offset=offset, at=offset // 3) for offset in range(7)))

        found: list[int] = []
        cursor = None
        while len(found) < 7:
            page = await history.attempts(AttemptQuery(), limit=2, cursor=cursor)
            found, cursor = [*found, *(one.at.offset for one in page.items)], page.cursor

        assert (found, cursor) == ([6, 5, 4, 3, 2, 1, 0], None)

    # counts

    async def test_posts_are_counted_by_minute_and_hour(self, history: History) -> None:
        await put(
            history,
            attempt("m-1", offset=0, at=1, duration_ms=30),
            attempt("m-2", offset=1, at=2, status=503),
            attempt("m-3", offset=2, at=61, receiver="cd", status=None, code="ambiguous"),
            attempt("m-1", offset=3, at=62, kind="callback"),
        )
        await put(history, attempt("m-4", offset=4, at=3, duration_ms=30))

        minutes = await spans(history, "minute")
        assert [(one.at, one.receiver, one.source_id) for one in minutes] == [
            (NOON, "ci", "shop"),
            (NOON + 60, "cd", "shop"),
        ]
        counted = Counted(minutes[0].counts)
        assert (counted.attempts, counted.success_rate, counted.quantiles_ms(0.5)) == (3, 2 / 3, [50])
        assert Counted(minutes[1].counts).outcomes[OUTCOMES.index("ambiguous")] == 1
        assert Counted(minutes[1].counts).quantiles_ms(0.5) == [None]
        assert [(one.at, one.receiver) for one in await spans(history, "hour")] == [(NOON, "cd"), (NOON, "ci")]
        assert await spans(history, "minute", receiver="cd", source_id="shop") == minutes[1:]
        assert await spans(history, "minute", source_id="other") == []
        assert await spans(history, "minute", since=NOON + 60, until=NOON + 61) == minutes[1:]
        assert await spans(history, "minute", since=NOON + 61) == []
        assert await spans(history, "minute", most=1) == minutes[:1]
        assert await spans(history, "minute", visible=Visible((), ("ci",))) == minutes[:1]

    # what it lets go

    async def test_days_that_are_over_are_dropped(self, history: History) -> None:
        for day in range(3):
            at = day * DAY_S
            await put(history, arrival(day, at=at, receivers=("ci",)), attempt(f"m-{day}", offset=day, at=at))

        assert await history.prune(NOON + DAY_S + 3600) == 1

        assert await names(history) == ["m-2", "m-1"]
        assert await names(history, receiver="ci") == ["m-2", "m-1"]
        assert [one.at.offset for one in (await history.attempts(AttemptQuery(), limit=9)).items] == [2, 1]
        assert [one.at for one in await spans(history, "hour", until=NOON + 9 * DAY_S)] == [
            NOON + DAY_S,
            NOON + 2 * DAY_S,
        ]
        assert await history.prune(NOON + DAY_S) == 0
        assert await history.next_offsets() == {FROM: 3, TRIED: 3}

    # erasures

    @pytest.mark.parametrize(
        ("what", "erased", "tried"),
        [
            ({"source_id": "shop", "message_id": "m-1"}, ["m-1"], ["m-4", "m-3", "m-2"]),
            ({"source_id": "shop"}, ["m-1", "m-2", "m-3"], ["m-4"]),
            ({"receiver": "ci"}, ["m-1"], ["m-4", "m-3", "m-2"]),
            ({"receiver": "nobody"}, [], ["m-4", "m-3", "m-2", "m-1"]),
        ],
    )
    async def test_an_erasure_deletes_the_payloads_it_covers(
        self, history: History, what: dict[str, str], erased: list[str], tried: list[str]
    ) -> None:
        more: Any = {"headers": {"x-name": "ann"}, "body": b"secret"}
        await put(
            history,
            arrival(1, receivers=("ci",), **more),
            arrival(2, receivers=("ci", "cd"), **more),
            arrival(3, **more),
            arrival(4, source="other", receivers=("cd",), **more),
            arrival(5, at=100, receivers=("ci",), **more),
            attempt("m-1", offset=0, at=1),
            attempt("m-2", offset=1, at=2, receiver="cd"),
            attempt("m-3", offset=2, at=3, receiver="cd"),
            attempt("m-4", offset=3, at=4, receiver="cd", source="other"),
        )
        for expected in (len(erased), 0):  # it may be repeated
            assert await history.erase(Erasure("e", NOON + 50, **what)) == expected

        page = await history.messages(MessageQuery(), limit=9)
        without = [one.arrival for one in page.items if one.arrival.body is None]
        assert sorted(one.message.message_id for one in without) == erased
        assert all(not one.headers and one.size == 100 for one in without)
        assert len(page.items) == 5
        assert [one.attempt.message_id for one in (await history.attempts(AttemptQuery(), limit=9)).items] == tried

    async def test_moments_that_cannot_be_break_nothing(self, history: History) -> None:
        await put(
            history,
            *(arrival(number, at=at) for number, at in enumerate((-1e12, -2e9, 1e9, 1e13))),
            *(attempt("m", offset=offset, at=at) for offset, at in enumerate((-1e12, 1e13, -2e9, 4e9))),
        )

        assert await names(history) == ["m-3", "m-2", "m-1", "m-0"]
        assert len((await history.attempts(AttemptQuery(), limit=9)).items) == 4
        await history.prune(NOON)
        assert await names(history) == ["m-3", "m-2"]

    async def test_an_id_that_comes_again_once_its_first_arrival_is_pruned_is_listed_once(
        self, history: History
    ) -> None:
        """Its delivery is still known, as its last attempt was days later."""
        await put(history, arrival(1, at=0), attempt("m-1", offset=0, at=2 * DAY_S))
        for number in range(2, 6):
            await put(
                history, arrival(number, at=1.5 * DAY_S + number), attempt(f"m-{number}", offset=number, at=DAY_S)
            )
        await history.prune(NOON + DAY_S)
        await put(history, arrival(9, name="m-1", at=3 * DAY_S))
        found, cursor = list[str](), None
        while len(found) < 9:
            page = await history.messages(MessageQuery(receiver="ci"), limit=1, cursor=cursor)
            found, cursor = found + ids(page), page.cursor
            if cursor is None:
                break
        assert found == ["m-1", "m-5", "m-4", "m-3", "m-2"]

    # hostile texts

    async def test_what_no_database_takes_breaks_nothing(self, history: History) -> None:
        bad = "a\0b\ud800c"
        await put(
            history,
            arrival(1, source=bad, name=bad, event_type=bad, content_type=bad, headers={bad: bad}, body=b"\0\xff"),
            attempt(bad, offset=0, source=bad, receiver=bad, detail=bad, reason=bad, life=bad),
            ending(bad, offset=0, source=bad, receiver=bad, reason=bad, detail=bad, status="failed", life=bad),
        )

        kept = "a\ufffdb\ufffdc"
        found = present(await history.message(MessageId(bad, bad)))
        assert found.arrival.message == MessageId(kept, kept)
        assert (found.arrival.event_type, found.arrival.body) == (kept, b"\0\xff")
        assert (found.deliveries[0].receiver, found.deliveries[0].reason) == (kept, kept)
        for query in (
            MessageQuery(source_id=bad),
            MessageQuery(receiver=bad),
            MessageQuery(reason=bad),
            MessageQuery(event_type=bad),
            MessageQuery(event_type="a\0*"),
            MessageQuery(id_prefix=bad),
            MessageQuery(visible=Visible((bad,), ())),
            MessageQuery(visible=Visible((), (bad,), {kept: Life(kept)})),
        ):
            assert len((await history.messages(query, limit=9)).items) == 1, query
        assert await names(history, header=(bad, bad), payload=(f"/{bad}", bad)) == []
        assert (
            len((await history.attempts(AttemptQuery(MessageQuery().visible, MessageId(bad, bad)), limit=9)).items) == 1
        )
        assert len((await history.attempts(AttemptQuery(receiver=bad), limit=9)).items) == 1

    @given(st.text(max_size=8), st.text(max_size=8), st.binary(max_size=40))
    @settings(max_examples=30)
    async def test_any_text_can_be_kept_and_found(self, history: History, one: str, other: str, body: bytes) -> None:
        await history.clear()
        await put(
            history, arrival(1, source=one or "s", name=other or "m", event_type=one, body=body, headers={"h": one})
        )

        assert len(await names(history, source_id=one or "s", id_prefix=other, header=("h", clean(one)))) == 1
        assert len(await names(history, payload=("", other))) in (0, 1)

    # the rest

    async def test_it_tells_how_much_it_holds(self, history: History) -> None:
        await put(history, arrival(1, receivers=("ci", "cd")), attempt("m-1", offset=0))

        size = await history.size()

        assert (size.messages, size.deliveries, size.attempts) == (1, 2, 1)

    async def test_it_can_be_started_twice(self, history: History) -> None:
        await put(history, arrival(1))
        await history.start()
        assert await names(history) == ["m-1"]


async def spans(
    history: History, by: By, *, since: float = NOON - DAY_S, until: float = NOON + DAY_S, **query: Any
) -> list[SpanCount]:
    most = query.pop("most", 100)
    return await history.counted(CountQuery(by, since, until, **query), most=most)


async def everything(history: History) -> dict[str, Any]:
    """The results of all queries."""
    messages = await history.messages(MessageQuery(), limit=10_000)
    attempts = await history.attempts(AttemptQuery(), limit=10_000)
    return {
        "messages": messages.items,
        "attempts": attempts.items,
        "minutes": await spans(history, "minute"),
        "hours": await spans(history, "hour"),
    }
