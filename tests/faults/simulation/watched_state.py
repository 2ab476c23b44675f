"""The state in memory, under observation: what no caller of it may bring about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from relay.state.attempts import BeginRequest, CallKind, Go, Settlement, Verdict
from relay.state.port import Lane
from relay.state.replies import REFUSALS, Refusal
from relay.state.rows import Mark, Row, RowKey, Stage, tag_of
from tests.fakes.state import MemoryState

Life = tuple[bytes, int]
"""Digest and generation of a row."""


@dataclass(slots=True)
class _Attempt:
    """`until`: after that its POST cannot arrive any more."""

    token: bytes
    until: float
    settled: bool = False


class WatchedState(MemoryState):
    """Notes violations in `wrongs`: of I5 (within a generation, a stored outcome is final), and of I6 (no process
    begins an attempt while another may still arrive; a former owner begins none after the present one)."""

    def __init__(self, **how: object) -> None:
        self.wrongs: list[str] = []
        self._attempts: dict[Life, _Attempt] = {}
        self._stages: dict[Life, Stage] = {}
        self._epochs: dict[tuple[str, int, int], int] = {}
        super().__init__(**how)  # type: ignore[arg-type]

    def lose(self) -> None:
        super().lose()
        self._watch_anew()

    def fail_over(self, copied: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().fail_over(copied)
        self._watch_anew()

    def _watch_anew(self) -> None:
        self._attempts.clear()
        self._stages.clear()
        self._epochs.clear()

    async def begin(self, asks: Sequence[tuple[Lane, BeginRequest]]) -> list[Verdict | Refusal]:
        verdicts = await super().begin(asks)
        for (lane, ask), verdict in zip(asks, verdicts, strict=True):
            if isinstance(verdict, Go) and ask.kind is CallKind.POST:
                self._watch_attempt(ask)
            if not isinstance(verdict, REFUSALS):
                self._watch_owner(lane, ask)
        return verdicts

    async def settle(self, settlements: Sequence[Settlement]) -> list[Row | Refusal | None]:
        rows = await super().settle(settlements)
        for one in settlements:
            attempt = self._attempts.get((one.row.digest, one.generation))
            if attempt is not None and attempt.token == one.token:
                attempt.settled = True
            self._watch_stage(one.row)
        return rows

    async def mark(self, marks: Sequence[Mark]) -> list[Refusal | None]:
        done = await super().mark(marks)
        for one in marks:
            self._watch_stage(one.row)
        return done

    async def forget(self, rows: Sequence[RowKey]) -> list[Refusal | None]:
        done = await super().forget(rows)
        digests = {row.digest for row in rows}
        self._stages = {life: stage for life, stage in self._stages.items() if life[0] not in digests}
        return done

    def _watch_attempt(self, ask: BeginRequest) -> None:
        life = (ask.row.digest, ask.generation)
        before = self._attempts.get(life)
        if before is not None and before.token == ask.token:
            return
        if before is not None and not before.settled and self.now < before.until:
            self.wrongs.append(f"I6: an attempt for {ask.row.owner} is begun while another may still arrive")
        self._attempts[life] = _Attempt(ask.token, self.now + ask.limits.settle_s)

    def _watch_owner(self, lane: Lane, ask: BeginRequest) -> None:
        at = (lane.topic, lane.partition, tag_of(ask.row.owner))
        if lane.epoch < self._epochs.get(at, lane.epoch):
            self.wrongs.append(f"I6: a former owner of {lane.topic} begins an attempt")
        self._epochs[at] = max(lane.epoch, self._epochs.get(at, lane.epoch))

    def _watch_stage(self, key: RowKey) -> None:
        row = self._of(key.owner).rows.load(key.digest, self.now)
        if row is None:
            return
        life = (key.digest, row.generation)
        before = self._stages.get(life, Stage.NONE)
        if before >= Stage.ACCEPTED and row.stage < before:
            self.wrongs.append(f"I5: a row of {key.owner} falls from {before.name} to {row.stage.name}")
        self._stages[life] = max(before, row.stage)
