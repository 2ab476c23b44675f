"""Processes that cannot use the settings of some receivers, as where a secret is not set, until they learn them."""

from collections.abc import AsyncIterator, Collection
from dataclasses import replace

from relay.control.records import Changes
from tests.fakes.strikes import Fuse
from tests.fakes.world import Known, Process, World


class Crewed(Process):
    """`lacks`: names of receivers whose settings it cannot use yet."""

    rebuilds = True
    lacks: frozenset[str] = frozenset()

    def learn(self) -> None:
        """It can use all of them from now on."""
        raise NotImplementedError


class Configured(Crewed):
    """Its receivers are those of the world."""

    def __init__(self, world: World, fuse: Fuse, lacks: Collection[str]) -> None:
        receivers = world.known.receivers().values()
        self._here = Known([replace(one, unusable="a secret") if one.name in lacks else one for one in receivers], ())
        self._learnt = Changes()
        self.lacks = frozenset(lacks)
        super().__init__(world, fuse)

    def learn(self) -> None:
        lacked, self.lacks = self.lacks, frozenset()
        for name in lacked:
            self._here.replace(self._world.known.receivers()[name])
            self.resumed(f"r:{name}")
        self._learnt.notify()

    def _known(self) -> Known:
        return self._here

    def _changes(self) -> AsyncIterator[int]:
        return self._learnt.follow()
