"""Quota requests and replies at the state port."""

from dataclasses import dataclass
from typing import NamedTuple

from relay.domain.quota import Quota


@dataclass(frozen=True, slots=True)
class Charge:
    """A request to count `messages` against the quota of `name`. The same name with another window is counted
    separately."""

    name: str
    messages: int
    quota: Quota


class Balance(NamedTuple):
    """`granted`: the messages fit and were counted. `left`: messages left in the current window, which ends in
    `ends_in_s`."""

    granted: bool
    left: int
    ends_in_s: float
