"""The `relay` command and its subcommands. Each one's module is imported only when it is used."""

import errno
import gc
import importlib
import keyword
import os
import platform
import sys
from types import ModuleType
from typing import Final

import click
from click.shell_completion import CompletionItem

from relay import __version__
from relay.cli.options import output_option
from relay.domain.errors import RelayError, UserError

_NO_ROOM: Final = {errno.ENOSPC: "is full", errno.EDQUOT: "quota is used up"}
COMMANDS: Final = {
    "attempts": ("relay.cli.messages", "List each HTTP exchange about a message, or with a receiver."),
    "audit": ("relay.cli.access", "Show who changed what over the API."),
    "bench": ("bench.command", "Measure throughput, latency and CPU per message. Needs a checkout."),
    "config": ("relay.cli.config", "Show and check the settings."),
    "demo": ("relay.cli.demo", "Send real payloads to three kinds of receiver, and print events as they happen."),
    "dev": ("relay.cli.dev", "Run everything in one process, embedded, with a demo receiver."),
    "doctor": ("relay.cli.doctor", "Check the relay and its dependencies, and say what to do."),
    "erase": ("relay.cli.access", "Erase the payloads of a source, a message or a receiver."),
    "events": ("relay.cli.event_types", "Apply, list and show the catalogue of event types."),
    "export": ("relay.cli.transfer", "Export the data of a stopped relay."),
    "failed": ("relay.cli.failed", "List, show, replay or discard dead letters."),
    "help": ("relay.cli.help", "Show a page of the documentation, or list them all."),
    "history": ("relay.cli.history", "Show the history's lag, or rebuild it."),
    "incidents": ("relay.cli.incidents", "List causes of failures, and fix one: fix, test, replay."),
    "import": ("relay.cli.transfer", "Import the data of another relay."),
    "keys": ("relay.cli.access", "Create, list, rotate and revoke keys of the API."),
    "messages": ("relay.cli.messages", "List messages, and the status of each delivery."),
    "portal": ("relay.cli.access", "Create links to the portal of an owner, and print its texts."),
    "listen": ("relay.cli.listen", "Forward messages to a port of this machine, and show requests and responses."),
    "presets": ("relay.cli.config", "List and show presets: entries for well-known systems."),
    "receivers": ("relay.cli.receivers", "Check, list and apply receivers."),
    "recover": ("relay.cli.recover", "Restore lost state from the log."),
    "replay": ("relay.cli.replay", "Replay failed or delivered messages; follow and stop such jobs."),
    "rights": ("relay.cli.rights", "Print the commands that give each role its rights on Kafka and Redis."),
    "run": ("relay.cli.run", "Run workers and API on Kafka and Redis."),
    "secrets": ("relay.cli.access", "Re-encrypt secrets with the newest key."),
    "send": ("relay.cli.send", "Send one message from a file."),
    "sink": ("relay.cli.sink", "Run a test receiver, like a CI with fault knobs."),
    "sources": ("relay.cli.sources", "Declare sources over the API, list, change and remove them."),
    "status": ("relay.cli.status", "Show the status of a message, and its answers."),
    "tail": ("relay.cli.events", "Show events as they happen, until Ctrl-C."),
    "top": ("relay.cli.top", "Show rates, lag and failures of each stage and receiver, as they change."),
    "topics": ("relay.cli.topics", "Create the topics, or describe them."),
    "trigger": ("relay.cli.trigger", "Send sample events."),
    "version": ("relay.cli.group", "Print the version."),
    "worker": ("relay.cli.run", "Run one worker on Kafka and Redis."),
}
"""Command -> its module, which has a click command of the same name (`import_`), and its line in --help."""


def version_text() -> str:
    """The version in one line."""
    return f"relay {__version__} (Python {platform.python_version()})"


@click.command()
@output_option
def version(output: str) -> None:
    """Print the version."""
    if output == "json":
        from relay.cli.table import print_json  # its imports take time

        print_json({"version": __version__, "python": platform.python_version()})
    else:
        click.echo(version_text())


def _imported(name: str) -> ModuleType:
    """The module, imported without the garbage collector: modules stay, and passes through their objects would take a
    fifth of the time, then and at the next collection."""
    if name in sys.modules:
        return sys.modules[name]
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collects:
            gc.freeze()
            gc.enable()


class Lazy(click.Group):
    """A group that imports a command when it is called: `relay version` must not load the Kafka client."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        try:
            command: click.Command = getattr(_imported(COMMANDS[cmd_name][0]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "bench":
                raise
            raise UserError("relay bench needs a checkout of the repository: run it in one") from error
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like any group, with the names of all commands for a suggestion."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the commands of `relay`. It imports none of them, because the shell waits for it at each Tab."""
        found = [CompletionItem(name, help=COMMANDS[name][1]) for name in self.list_commands(ctx)]
        # options, without the group's own look-up of commands
        own = click.Command.shell_complete(self, ctx, incomplete)
        return [item for item in found if item.value.startswith(incomplete)] + own

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(version_text())
        ctx.exit()


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Print the version."
)
def relay() -> None:
    """A webhook relay that brings the receiver's answer back to the sender."""


def run() -> int:
    """Run the command that the arguments name, and report an error in one line. Returns the exit code. Raises
    KeyboardInterrupt."""
    try:
        return relay(standalone_mode=False) or 0
    except click.exceptions.Abort as error:
        raise KeyboardInterrupt from error
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"error: {_mistake(error)}", err=True)
        return error.exit_code
    except (Exception, BaseExceptionGroup) as error:
        if _is_broken_pipe(error):
            return _reader_gone()
        known = _known(error)
        if known is None:
            raise
        for line in str(known).splitlines():
            click.echo(f"error: {line}", err=True)
        return 2 if isinstance(known, UserError) else 1


def _mistake(error: click.ClickException) -> str:
    """The mistake in the arguments, in a line that names the help."""
    line = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None or line.endswith("?"):  # a suggestion is help enough
        return line
    return f"{line.rstrip('.')}; see {context.command_path} --help"


def _is_broken_pipe(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_broken_pipe, error.exceptions))
    return isinstance(error, BrokenPipeError)


def _reader_gone() -> int:
    """The reader of our output, such as `head`, has closed the pipe: drops what Python would still write at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _known(error: BaseException) -> RelayError | None:
    """The first error in `error`, if all of them were raised on purpose: mistakes or faults, but no bugs."""
    if isinstance(error, BaseExceptionGroup):
        known = [_known(each) for each in error.exceptions]
        return known[0] if all(each is not None for each in known) else None
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        where = f": {error.filename} cannot be written" if error.filename else ""
        return RelayError(f"the disk {_NO_ROOM[error.errno]}{where}")
    if isinstance(error, IsADirectoryError | NotADirectoryError | PermissionError) and error.filename:
        return UserError(f"{error.filename}: {error.strerror}")
    if isinstance(error, RelayError):
        return error
    from relay.cli.api import error_of  # its imports take time

    return error_of(error)
