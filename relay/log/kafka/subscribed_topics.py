"""The topics that a member wants, those of them that there are, and how many partitions they have."""

import asyncio
from collections.abc import Collection
from typing import Final

from relay.log.kafka.client import KafkaClient
from relay.log.kafka.member_metadata import Vocabulary
from relay.log.partitioner import partitions_of
from relay.log.port import NONE_UNABLE, Unable

_LOOK_S: Final = 300.0
"""They may get more partitions."""

_TOPICS: Final = 500
"""Asked about at a time: the answer is taken apart in one go."""


class WantedTopics:
    """`vocabulary`: of those that there are."""

    def __init__(self, client: KafkaClient, topics: Collection[str]) -> None:
        self._client = client
        self._topics = frozenset(topics)
        self._unable = NONE_UNABLE
        self._counts: dict[str, int] = {}
        self._looked_at = float("-inf")
        self.vocabulary = Vocabulary({})

    def change(self, topics: Collection[str], unable: Unable) -> bool:
        """Whether that is news; then `look` has to be called."""
        wanted = frozenset(topics)
        if (wanted, unable) == (self._topics, self._unable):
            return False
        self._topics, self._unable = wanted, unable
        return True

    @property
    def any(self) -> str | None:
        """One that there is."""
        return next(iter(self._counts), None)

    @property
    def missing(self) -> list[str]:
        return sorted(self._topics - self._counts.keys())

    async def look(self) -> bool:
        """Ask the cluster about unknown topics, and now and then about all. Whether anything about the wanted topics
        has changed. Raises LogUnavailable."""
        now, wanted = asyncio.get_running_loop().time(), self._topics
        all_of_them = now - self._looked_at >= _LOOK_S
        names = sorted(wanted if all_of_them else wanted - self._counts.keys())
        counts = {name: count for name, count in self._counts.items() if name in wanted and not all_of_them}
        for first in range(0, len(names), _TOPICS):
            there = await self._client.topics(names[first : first + _TOPICS])
            counts |= {name: len(partitions) for name, partitions in there.items()}
        if all_of_them:
            self._looked_at = now
        unable = partitions_of(self._unable, counts)
        if (counts, unable) == (self._counts, self.vocabulary.unable):
            return False
        self._counts = counts
        self.vocabulary = Vocabulary(counts, unable)
        return True
