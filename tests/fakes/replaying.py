"""A world in which messages fail, and processes that replay or discard them."""

from collections.abc import Coroutine, Sequence
from typing import Any

from relay.config.settings import Settings
from relay.control.projections import ReplayJob
from relay.domain.exchange import Response
from relay.domain.identity import DeliveryId
from relay.domain.replay_job import Action, Selection
from relay.log.port import Record
from relay.replay.letter import Letter, read_dead_letter
from relay.replay.replay_service import ReplayService
from relay.replay.runner import ReplayRunner
from relay.state.rows import Row, delivery_row
from tests.fakes.moving import QUICK, MovingProcess, MovingWorld

REJECTED = Response(422, {}, b"no")
EVERYTHING = Selection()


class ReplayWorld(MovingWorld):
    """`outside.troubles` says what fails; `reject` fills it."""

    def __init__(self, *, settings: Settings | None = None) -> None:
        super().__init__(settings=settings)
        self.sources = {"*": {"callback": {"url": "http://sender/callback", "signature": "none", "retry": QUICK}}}

    def reject(self, *ids: str, times: int = 1) -> None:
        for id in ids:
            self.outside.troubles[id] = [REJECTED] * times

    def letters(self) -> list[Letter]:
        """All dead letters that there are."""
        return [read_dead_letter(record, self.topics) for record in self.broker.records(self.topics.failed_messages)]

    def lane(self, name: str) -> list[Record]:
        return self.broker.records(self.topics.to_receiver(name))

    async def row(self, receiver: str, source_id: str, message_id: str) -> Row:
        (row,) = await self.state.peek([delivery_row(DeliveryId(receiver, source_id, message_id))])
        assert isinstance(row, Row)
        return row

    def generations(self, path: str) -> list[tuple[str, int]]:
        """What arrived at a receiver, in order, and in which life."""
        return [(h["ce-id"], int(h["relay-generation"])) for at, h, _ in self.outside.posts if at == path]


class ReplayProcess(MovingProcess):
    """A process that may do the jobs, and can be asked for one."""

    replay_service: ReplayService
    room = 25_000
    """Unfinished messages of a receiver in the shared lane with which it gets more."""

    def _beside(self, log: Any, state: Any) -> Sequence[Coroutine[Any, Any, None]]:
        self.replay_service = self.service(log, state)
        owner, topics = f"process-{id(self)}", self._world.topics
        runner = ReplayRunner(log, state, topics, self.replay_service, self._clock, owner=owner, room=self.room)
        return (*super()._beside(log, state), runner.run())

    def service(self, log: Any, state: Any) -> ReplayService:
        """What plans and carries out replays there."""
        registry = self.registry
        return ReplayService(
            log,
            state,
            self._world.topics,
            registry,
            registry,
            registry.jobs,
            self._clock,
            lanes=lambda: registry.receivers(),
            known_to=registry.reach,
            max_payload_bytes=1_000_000,
            erasures=registry.erasures,
        )

    async def order(self, action: Action = "replay", selection: Selection = EVERYTHING, **asked: Any) -> ReplayJob:
        """As the API would."""
        order, _ = await self.replay_service.order(action, selection, **asked)
        return await self.replay_service.submit(order)
