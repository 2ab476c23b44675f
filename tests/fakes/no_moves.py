"""`Moves` of receivers that never change their lane."""

from relay.domain.receiver import NO_TOPIC, SeenTopic
from relay.domain.route import Cut, Marker


class NoMoves:
    async def catch_up(self) -> None:
        return

    async def present_topic(self, topic: str) -> SeenTopic:
        return NO_TOPIC

    def announced(self, marker: Marker) -> bool:
        return False

    def is_in_progress(self, marker: Marker) -> bool:
        return False

    def cut(self, name: str, version: int, partition: int) -> int | None:
        return None

    def note(self, cut: Cut) -> None:
        return
