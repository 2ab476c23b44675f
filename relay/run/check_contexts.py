"""Contexts of the checks: for a command with its own connections, or for a running process with its existing ones."""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from relay.checks.context import CheckContext, KnownEntries, Opened, already, known_to, known_to_file
from relay.checks.host import sqlite_file
from relay.checks.runner import examine
from relay.clock import Clock
from relay.config.encryption import KeyRing
from relay.config.own_address import answer_secrets, own_url
from relay.config.plan import ROLES
from relay.config.receivers_file import ReceiversFile, load_receivers_file
from relay.config.references import usable_variables
from relay.config.setting_values import key_of
from relay.config.settings import Settings
from relay.control.registry import Registry
from relay.domain.diagnosis import Diagnosis
from relay.domain.errors import HistoryUnavailable, LogUnavailable, RelayError, StateUnavailable, UserError
from relay.domain.topics import Topics
from relay.engine.supervision import unless_stopped
from relay.history.lag import Behind
from relay.history.port import History, HistoryReader
from relay.log.port import Log
from relay.run.composition import ProcessContext, kafka_log, redis_state
from relay.run.history_part import open_history
from relay.state.port import State

REPEAT_S: Final = 0.5
"""For the log's own retries: the caller has little time."""
READ_S: Final = 8.0
"""For reading all entries from the log."""


def context_of_command(
    settings: Settings,
    environ: Mapping[str, str],
    roles: frozenset[str],
    clock: Clock,
    receiver: str | None = None,
    *,
    mistakes: Sequence[str] = (),
) -> CheckContext:
    """The context of the command, with its own connections; close it at the end. `mistakes`: those of the settings."""
    file, of_file = _file_of(settings)
    variables = usable_variables(environ, settings.secrets_from)
    log = Opened(lambda: _started(settings), _close)

    async def known() -> KnownEntries:
        return await _known(settings, log, file, variables, receiver)

    history = _history(settings)

    async def behind() -> float | None:
        if history is None:
            return None
        store = await history()
        await store.next_offsets()  # so that an unavailable log is not reported as an unavailable store
        return await Behind(store, await log(), Topics(settings.topic_prefix), clock).seconds()

    return CheckContext(
        settings=settings,
        roles=roles,
        clock=clock,
        log=log,
        state=already(redis_state(settings), _close),
        known=Opened(known),
        mistakes=[*mistakes, *of_file],
        answer_secrets=answer_secrets(settings),
        api_url=own_url(settings.api_host, settings.api_port),
        receiver=receiver,
        history_behind=None if history is None else behind,
        history=history,
    )


def context_of_directory(
    settings: Settings, directory: Path, environ: Mapping[str, str], clock: Clock, receiver: str | None = None
) -> CheckContext:
    """An embedded relay that does not run. `settings`: those that it would have."""
    file, mistakes = _file_of(settings)

    async def known() -> KnownEntries:
        return known_to_file(file, usable_variables(environ, settings.secrets_from), receiver)

    async def log() -> Log:
        start = f"relay dev --data-dir {shlex.quote(str(directory))}"
        raise LogUnavailable(f"no relay runs on {directory}, so its log and state are unavailable; start it: {start}")

    async def state() -> State:
        raise StateUnavailable("it runs with the embedded relay; start that")

    return CheckContext(
        settings=settings,
        roles=frozenset(ROLES),
        clock=clock,
        log=Opened(log),
        state=Opened(state),
        known=Opened(known),
        mistakes=mistakes,
        receiver=receiver,
        data_dir=directory,
    )


async def examine_process(
    context: ProcessContext, history: HistoryReader | None, receiver: str | None = None
) -> Diagnosis:
    """The diagnosis of a running process, through its own connections."""
    settings, plan, registry = context.settings, context.plan, context.registry

    async def known() -> KnownEntries:
        if registry.ready.is_set():
            return known_to(registry, receiver)
        return known_to_file(_file_of(settings)[0], {}, receiver)

    checks = CheckContext(
        settings=settings,
        roles=plan.roles,
        clock=context.clock,
        log=already(context.log),
        state=already(context.state),
        known=Opened(known),
        answer_secrets=plan.answer_secrets,
        api_url=own_url(settings.api_host, settings.api_port),
        receiver=receiver,
        data_dir=plan.data_dir,
    )
    if history is not None:
        checks = replace(checks, history_behind=Behind(history, context.log, context.topics, context.clock).seconds)
    return await examine(checks)


async def _started(settings: Settings) -> Log:
    log = kafka_log(settings, repeat_s=REPEAT_S)
    try:
        await log.start()
    except BaseException:
        await log.close()
        raise
    return log


async def _close(opened: Log | State | History) -> None:
    await opened.close()


def _history(settings: Settings) -> Opened[History] | None:
    """The history's store. It is never created here: its worker does that."""
    if (url := settings.history_url) is None:
        return None

    async def opened_one() -> History:
        file = sqlite_file(settings)
        if file is not None and not file.exists():
            raise HistoryUnavailable(f"the history in {file} does not exist: no worker has created it")
        try:
            return open_history(url.get_secret_value())
        except UserError as error:
            raise HistoryUnavailable(str(error)) from error

    return Opened(opened_one, _close)


def _file_of(settings: Settings) -> tuple[ReceiversFile | None, list[str]]:
    """The receivers file, and its mistakes."""
    path: Path = settings.receivers_file
    if not path.exists() and "receivers_file" not in settings.model_fields_set:
        return None, []
    try:
        return load_receivers_file(path), []
    except UserError as wrong:
        return None, str(wrong).splitlines()


async def _known(
    settings: Settings,
    log: Opened[Log],
    file: ReceiversFile | None,
    variables: Mapping[str, str],
    receiver: str | None,
) -> KnownEntries:
    """The entries in force, and those that only the file declares: these take effect when a process starts."""
    of_file = known_to_file(file, variables, receiver)
    try:
        async with asyncio.timeout(READ_S):
            registry = await _read(settings, await log(), file, variables)
    except (RelayError, TimeoutError):
        return of_file
    known = known_to(registry, receiver)
    return replace(
        known,
        receivers={**of_file.receivers, **known.receivers},
        sources={**of_file.sources, **known.sources},
        refused={**of_file.refused, **known.refused},
    )


async def _read(settings: Settings, log: Log, file: ReceiversFile | None, variables: Mapping[str, str]) -> Registry:
    """Raises LogUnavailable."""
    registry = Registry(
        Topics(settings.topic_prefix),
        variables,
        ring=KeyRing([key_of(key.get_secret_value()) for key in settings.secrets_key]),
    )
    if file is not None:
        registry.learn(file)
    await unless_stopped(registry.follow(log), registry.ready)
    return registry
