"""Quotas of messages from one source, or with one API key. Pure."""

from dataclasses import dataclass
from typing import Final

LONGEST_WINDOW_S: Final = 86_400
MOST_MESSAGES: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `messages` (1 to MOST_MESSAGES) in a window of `window_s` seconds, which begins with its first message;
    the next message after it begins a new window. Whole seconds, 1 to LONGEST_WINDOW_S: quota header fields allow no
    others."""

    messages: int
    window_s: int

    def __str__(self) -> str:
        return f"{self.messages}/{self.window_s}s"
