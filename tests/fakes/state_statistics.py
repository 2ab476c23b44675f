"""What the state's fake keeps of attempts, for people."""

from collections.abc import Mapping, Sequence

from relay.domain.incident import Incident, Marks, PersonMark, Verb
from relay.domain.statistics import HOURS, sum_of
from relay.state.port import StoredIncidents
from relay.state.read_model import LastAttempt, LastResponse, Statistics, Tally
from relay.state.rows import tag_of
from tests.fakes.state_memory import Memory

_KEPT_S = (HOURS + 1) * 3600
_NOTHING = (Statistics({}, None), 0.0)


class StatisticsKept(Memory):
    """The part of the port that is about statistics."""

    async def tally(self, writer: str, number: int, tallies: Sequence[Tally]) -> None:
        until = self.now + _KEPT_S  # in time that never goes back, as keys of a server expire for good
        told = {(tag_of(one.owner), writer) for one in tallies}
        fresh = {key[0] for key in told if not self._was_told(key, number)}
        self._told |= dict.fromkeys([key for key in told if key[0] in fresh], (number, until))
        for one in tallies:
            if tag_of(one.owner) in fresh:
                self._statistics[one.owner] = self._with(one), until
                if one.response is not None:
                    self._responses[one.owner] = one.response, until

    def _was_told(self, key: tuple[int, str], number: int) -> bool:
        known, until = self._told.get(key, (number, 0.0))
        return known == number and self.now < until

    def _with(self, tally: Tally) -> Statistics:
        hours, last = self._kept(tally.owner)
        hour = int(self.server_now // 3600)
        known = [hours[hour]] if hour in hours else []
        newest = tally.last if last is None or last.at <= tally.last.at else last
        return Statistics({**hours, hour: sum_of([*known, tally.counted])}, newest)

    def _kept(self, owner: str) -> Statistics:
        known, until = self._statistics.get(owner, _NOTHING)
        return known if self.now < until else _NOTHING[0]

    async def last_response(self, owner: str) -> LastResponse | None:
        known, until = self._responses.get(owner, (None, 0.0))
        return known if self.now < until else None

    async def last_attempts(self, owners: Sequence[str]) -> list[LastAttempt | None]:
        return [self._kept(owner).last for owner in owners]

    async def incidents(self) -> StoredIncidents:
        return StoredIncidents(dict(self._incidents), dict(self._marks))

    async def keep_incidents(self, kept: Sequence[Incident], dropped: Sequence[str] = ()) -> None:
        self._incidents |= {one.id: one for one in kept}
        for id in dropped:
            self._incidents.pop(id, None)
            self._marks.pop(id, None)

    async def add_incidents(self, new: Sequence[Incident]) -> None:
        self._incidents = {one.id: one for one in new} | self._incidents

    async def mark_incident(self, id: str, verb: Verb, mark: PersonMark) -> PersonMark:
        known = self._marks.get(id, Marks())
        before = known.acknowledged if verb == "acknowledge" else known.resolved
        if before is not None and before.opened_at == mark.opened_at:
            return before
        name = "acknowledged" if verb == "acknowledge" else "resolved"
        self._marks[id] = known._replace(**{name: mark})
        return mark

    async def keep_waiting(self, since: Mapping[str, float]) -> None:
        self._waiting = dict(since), self.now + 60.0

    async def waiting(self) -> dict[str, float]:
        since, until = self._waiting
        return dict(since) if self.now < until else {}

    async def statistics(self, owners: Sequence[str]) -> list[Statistics]:
        return [self._shown(owner) for owner in owners]

    def _shown(self, owner: str) -> Statistics:
        hours, last = self._kept(owner)
        first = int(self.server_now // 3600) - HOURS
        return Statistics({hour: counted for hour, counted in sorted(hours.items()) if hour > first}, last)
