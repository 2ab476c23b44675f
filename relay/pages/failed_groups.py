"""Dead letters in groups of one receiver and one reason, with how many there were in each hour. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from relay.pages.causes import group_advice
from relay.pages.round_trip import moment

HOURS: Final = 24
_HOUR_S: Final = 3_600.0
Letter = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FailedGroup:
    """`newest`: its newest letter. `hours`: how many in each of the last HOURS hours, the present one last; `earlier`:
    before that. `share`: of each of these hours, from 0 to 1, of the fullest."""

    receiver: str
    reason: str
    count: int
    first_at: str | None
    newest: Letter
    hours: tuple[int, ...]
    earlier: int
    advice: str

    @property
    def shares(self) -> tuple[float, ...]:
        most = max(self.hours) or 1
        return tuple(count / most for count in self.hours)


def groups_of(letters: Sequence[Letter], now: float) -> list[FailedGroup]:
    """The largest first. `letters`: newest first. `now`: Unix seconds."""
    found: dict[tuple[str, str], list[Letter]] = {}
    for letter in letters:
        found.setdefault((letter["receiver"], letter["reason"]), []).append(letter)
    groups = [_group(receiver, reason, each, now) for (receiver, reason), each in found.items()]
    return sorted(groups, key=lambda group: (-group.count, group.receiver, group.reason))


def _group(receiver: str, reason: str, letters: Sequence[Letter], now: float) -> FailedGroup:
    hours, earlier = [0] * HOURS, 0
    for letter in letters:
        ago = int((now - (moment(letter["failed_at"]) or 0.0)) // _HOUR_S)
        if ago >= HOURS:
            earlier += 1
        else:
            hours[HOURS - 1 - max(0, ago)] += 1
    first = letters[-1]["failed_at"]
    return FailedGroup(
        receiver,
        reason,
        len(letters),
        first,
        letters[0],
        tuple(hours),
        earlier,
        group_advice(reason, letters[0]["last_status"]),
    )
