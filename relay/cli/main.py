"""`relay`: the command line. Each command's module is imported only when it is used."""

import importlib
import sys
from typing import Final

import click

from relay.domain.errors import RelayError, UserError

COMMANDS: Final = {
    "bench": ("relay.cli.bench", "Measure throughput, latency and CPU per message. Needs a checkout."),
    "config": ("relay.cli.config", "Look at the settings."),
    "demo": ("relay.cli.demo", "Send real payloads to three kinds of receiver, and show each message's way."),
    "dev": ("relay.cli.dev", "Run everything in one process, embedded, with a demo receiver."),
    "failed": ("relay.cli.failed", "List dead letters, and look at one."),
    "receivers": ("relay.cli.receivers", "Check, list and apply receivers."),
    "run": ("relay.cli.run", "Run workers and API on Kafka and Redis."),
    "send": ("relay.cli.send", "Send one message from a file."),
    "sink": ("relay.cli.sink", "Run a test receiver, like a CI with fault knobs."),
    "status": ("relay.cli.status", "Show where a message is, and its answers."),
    "topics": ("relay.cli.topics", "Create the topics, or describe them."),
    "trigger": ("relay.cli.trigger", "Send sample events."),
    "version": ("relay.cli.version", "Print the version."),
    "worker": ("relay.cli.worker", "Run one worker on Kafka and Redis."),
}
"""Command -> its module, which has a click command of the same name, and its line in --help."""


class Lazy(click.Group):
    """A group that imports a command when it is called: `relay version` must not load the Kafka client."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
def relay() -> None:
    """A webhook relay that brings the receiver's answer back to the sender."""


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 failed, 2 usage or configuration."""
    try:
        sys.exit(relay(standalone_mode=False) or 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (RelayError, BaseExceptionGroup) as error:
        known = _known(error)
        if known is None:
            raise
        for line in str(known).splitlines():
            click.echo(f"error: {line}", err=True)
        sys.exit(2 if isinstance(known, UserError) else 1)


def _known(error: BaseException) -> RelayError | None:
    """The first error in `error`, when all of it was raised on purpose: a mistake or a fault, but no bug."""
    if isinstance(error, BaseExceptionGroup):
        known = [_known(each) for each in error.exceptions]
        return known[0] if all(each is not None for each in known) else None
    return error if isinstance(error, RelayError) else None
