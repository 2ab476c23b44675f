"""Defects that users met, each planted again by name.

Run as a module, it is the `relay` command with the defect that its first argument names.
"""

import pkgutil
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import click
import pytest
from rich.text import Text

from relay.cli.main import main
from relay.domain.errors import LogUnavailable
from relay.domain.receiver import Receiver
from relay.embedded.directory import user_directory
from relay.embedded.relay import EmbeddedRelay
from relay.sink import Mode, Sink
from relay.watch.verifier import Verifier
from tests.servers.fork_server import Job


def _cut(self: object, line: Text, columns: int) -> list[Text]:
    line.truncate(columns, overflow="ellipsis")
    return [line]


def _answering_sink(mode: Mode, **rest: Any) -> Sink:
    return Sink("answer" if mode == "ok" else mode, **rest)


async def _as_it_is(client: object, state: object, within_s: float) -> object:
    return state


async def _nothing_left_over(client: object) -> str:
    return ""


async def _refused_while_running(self: Verifier, receiver: Receiver) -> object:
    return None if self._running else await _try_now(self, receiver)


async def _ended(_self: EmbeddedRelay) -> None:
    raise LogUnavailable("it ends")


TAILED: Final = "relay.api.tail.event.TailedEvent"
_try_now: Final = Verifier.try_now

DEFECTS: Final[Mapping[str, tuple[str, object]]] = {
    "a visitor is any text": ("relay.pages.session._TOKEN", re.compile("(?s).*")),
    "one directory for all folders": ("relay.cli.dev.usual_directory", lambda environ, _file: user_directory(environ)),
    "nothing is said of what is left over": ("relay.cli.dev._left_over", _nothing_left_over),
    "fresh removes nothing": ("relay.cli.dev.clear", lambda _directory: None),
    "fresh removes anything": ("relay.embedded.directory.holds_data", lambda _directory: True),
    "fresh removes what is in use": ("relay.embedded.directory.is_taken", lambda _directory: False),
    "the tail is in the order of reading": (f"{TAILED}.place", property(lambda _event: (0, 0))),
    "the tail is in the order of time alone": (f"{TAILED}.place", property(lambda event: (event.at_ms, 0))),
    "the demo is cut": ("relay.cli.events.Screen._folded", _cut),
    "the demo is not folded": ("relay.cli.events.Screen._folded", lambda _self, line, _columns: [line]),
    "the demo's sender answers a notice": ("relay.cli.demo.Sink", _answering_sink),
    "a trigger does not wait": ("relay.cli.trigger.first_tried", _as_it_is),
    "a refusal names no address": ("relay.delivery.dial._connect_failure", lambda error, _host, _port: str(error)),
    "broken JSON is not seen": ("relay.api.intake.json_fault", lambda _message: None),
    "a wrong key is none": ("relay.client.http.Http._hint", lambda _self: "; set RELAY_API_KEY to a key of the API"),
    "TLS failed, and no more": ("relay.client.http.tls_failure", lambda reason: reason),
    "no command is suggested": ("relay.cli.group.Lazy.resolve_command", click.Group.resolve_command),
    "a wait has no reason": ("relay.api.waiting._queued", lambda _lane, _since, _now: None),
    "no history by default": ("relay.cli.history.is_loopback", lambda _host: False),
    "a history for several machines": ("relay.cli.history.is_loopback", lambda _host: True),
    "one history for all installations": (
        "relay.cli.history.installation_id",
        lambda _servers, _prefix: "0" * 64,
    ),
    "a full disk is an end": ("relay.embedded.relay.EmbeddedRelay._until_there_is_room", _ended),
    "no address in `started`": ("relay.run.process.RelayProcess.addresses", property(lambda _self: [])),
    "no version in `started`": ("relay.cli.run.__version__", ""),
    "a log that hangs is well": ("relay.watch.readiness._reported_if_silent", lambda look, _report: look()),
    "one handshake at a time": ("relay.watch.verifier.Verifier.try_now", _refused_while_running),
}
"""By name: the attribute to replace, and its replacement."""


def plant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Plant a defect in this process, and in relay processes that it starts from now on."""
    monkeypatch.setattr(*DEFECTS[name])
    for module in ("forking", "process"):
        monkeypatch.setattr(f"tests.servers.{module}.Job", partial(_job, name))


def _job(name: str, _module: str, arguments: tuple[str, ...], *rest: Any) -> Job:
    return Job("tests.integration.planted_defects", (name, *arguments), *rest)


if __name__ == "__main__":
    place, planted = DEFECTS[sys.argv.pop(1)]
    owner, _, attribute = place.rpartition(".")
    setattr(pkgutil.resolve_name(owner), attribute, planted)
    main()
