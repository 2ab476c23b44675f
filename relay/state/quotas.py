"""What the state counts of messages that come in."""

from dataclasses import dataclass
from typing import NamedTuple

from relay.domain.quota import Quota


@dataclass(frozen=True, slots=True)
class Charge:
    """`messages` are about to come in, of whom `name` says. The same name with another window is counted apart."""

    name: str
    messages: int
    quota: Quota


class Balance(NamedTuple):
    """`granted`: they fitted, and are counted. `left`: how many more may come in before `ends_in_s`, when the present
    window ends."""

    granted: bool
    left: int
    ends_in_s: float
