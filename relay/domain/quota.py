"""How much may come in of one source, or with one key. Pure."""

from dataclasses import dataclass
from typing import Final

LONGEST_WINDOW_S: Final = 86_400
MOST_MESSAGES: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    """So many `messages`, 1 to MOST_MESSAGES, within `window_s` seconds from the first of them; then a window begins
    anew with the next. Whole seconds, 1 to LONGEST_WINDOW_S: header fields that tell of quotas know no others."""

    messages: int
    window_s: int

    def __str__(self) -> str:
        return f"{self.messages}/{self.window_s}s"
