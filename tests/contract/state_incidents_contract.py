"""Contract tests of the state port: incidents, and the marks that operators set on them. Both may be lost."""

import asyncio
from typing import Final

from relay.domain.incident import MOST, Facts, Incident, Marks, Party, PersonMark
from relay.state.port import StoredIncidents
from relay.state.read_model import LastAttempt
from tests.contract.state_contract import Rig
from tests.contract.state_statistics_contract import LATER, tally

NOW: Final = 1_700_000_000.25


def incident(number: int = 0, **fields: object) -> Incident:
    facts = Facts(why="401 Unauthorized", receivers=("ci", "cd"), message_id="m\u0000é-1", items=("a",))
    given: dict[str, object] = {"waiting": 3, "facts": facts, **fields}
    return Incident(f"inc_{number:016}", "credentials", Party("receiver", f"ci-{number}"), "", NOW, NOW + 1, **given)  # type: ignore[arg-type]


class IncidentsContract:
    async def test_of_an_empty_state_there_are_none(self, rig: Rig) -> None:
        assert await rig.state.incidents() == StoredIncidents({}, {})

    async def test_what_is_kept_is_read_as_it_was(self, rig: Rig) -> None:
        one, other = incident(), incident(1, resolved_at=NOW + 9, resolved_by="key:a", cleared_at=NOW)
        await rig.state.keep_incidents([one, other])
        assert (await rig.state.incidents()).incidents == {one.id: one, other.id: other}
        newer = incident(waiting=7)
        await rig.state.keep_incidents([newer], [other.id])
        assert (await rig.state.incidents()).incidents == {one.id: newer}

    async def test_what_is_stored_is_not_replaced_by_what_another_process_adds(self, rig: Rig) -> None:
        one, other = incident(), incident(1)
        await rig.state.keep_incidents([one])
        await rig.state.add_incidents([incident(waiting=7), other])
        assert (await rig.state.incidents()).incidents == {one.id: one, other.id: other}

    async def test_of_two_who_acknowledge_at_once_one_counts(self, rig: Rig) -> None:
        one = incident()
        await rig.state.keep_incidents([one])
        marks = [PersonMark(NOW, f"key:{n}", NOW + n) for n in range(20)]
        found = await asyncio.gather(*(rig.state.mark_incident(one.id, "acknowledge", mark) for mark in marks))
        assert len(set(found)) == 1
        assert (await rig.state.incidents()).marks == {one.id: Marks(acknowledged=found[0])}

    async def test_a_mark_is_of_one_occurrence(self, rig: Rig) -> None:
        one = incident()
        first, later = PersonMark(NOW, "key:a", NOW + 1), PersonMark(NOW + 9_000, "key:b", NOW + 9_001)
        assert await rig.state.mark_incident(one.id, "resolve", first) == first
        assert await rig.state.mark_incident(one.id, "resolve", PersonMark(NOW, "key:b", NOW + 2)) == first
        assert await rig.state.mark_incident(one.id, "resolve", later) == later
        assert await rig.state.mark_incident(one.id, "acknowledge", later) == later
        assert (await rig.state.incidents()).marks == {one.id: Marks(later, later)}

    async def test_with_an_incident_its_marks_go(self, rig: Rig) -> None:
        one = incident()
        await rig.state.keep_incidents([one])
        await rig.state.mark_incident(one.id, "acknowledge", PersonMark(NOW, "key:a", NOW))
        await rig.state.keep_incidents([], [one.id])
        assert await rig.state.incidents() == StoredIncidents({}, {})

    async def test_a_thousand_are_kept_in_one_call(self, rig: Rig) -> None:
        many = [incident(n) for n in range(MOST)]
        await rig.state.keep_incidents(many)
        assert len((await rig.state.incidents()).incidents) == MOST

    async def test_what_waits_is_replaced_and_forgotten_after_a_minute(self, rig: Rig) -> None:
        assert await rig.state.waiting() == {}
        await rig.state.keep_waiting({"r:ci": NOW, "s:a/b\u0000é": NOW + 0.125})
        assert await rig.state.waiting() == {"r:ci": NOW, "s:a/b\u0000é": NOW + 0.125}
        await rig.state.keep_waiting({f"r:ci-{number}": NOW for number in range(1_000)})
        assert len(await rig.state.waiting()) == 1_000
        await rig.state.keep_waiting({})
        assert await rig.state.waiting() == {}

    async def test_the_latest_attempts_of_many_are_read_at_once(self, rig: Rig) -> None:
        await rig.state.tally("one", 1, [tally(1), tally(1, owner="r:cd", last=LATER)])
        found = await rig.state.last_attempts(["r:cd", "r:nobody", "r:ci"])
        assert found == [LATER, None, LastAttempt(1_700_000_000.25, 204, None, 0.012)]
