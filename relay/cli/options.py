"""Options that several commands have, and the types of paths on the command line."""

import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relay.domain.errors import RelayError, UserError

if TYPE_CHECKING:
    from relay.config.settings import Settings

F = TypeVar("F", bound=Callable[..., object])
_SENTENCE = 300
"""Characters; click cuts a longer one."""


class _NamedPath(click.Path):
    """An empty path, as `"$UNSET"` gives, is a mistake, and not the current directory."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("the path is empty: give one, or omit the option", param, ctx)
        return super().convert(value, param, ctx)


class _Name(click.types.StringParamType):
    """A name or id. An empty one, as `"$UNSET"` gives, is a mistake: without the option, the message is for all
    subscribers, or gets a new id."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "":
            self.fail("the name or id is empty: give one, or omit the option", param, ctx)
        return str(super().convert(value, param, ctx))


class CommandGroup(click.Group):
    """A group whose help has the whole first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        shown = [(name, each.get_short_help_str(_SENTENCE)) for name, each in found if each is not None]
        with formatter.section("Commands"):
            formatter.write_dl(shown)


class ListingGroup(CommandGroup):
    """A group that runs its command `list` if no command is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = bool(args) and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if given else ["list", *args])


class WholeRange(click.IntRange):
    """A range of whole numbers, as the help and the errors call them."""

    name = "integer"


class FiniteRange(click.FloatRange):
    """A range of numbers without NaN, which click accepts in any range, and without infinity."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


DIRECTORY = _NamedPath(file_okay=False, path_type=Path)
FILE = _NamedPath(dir_okay=False, path_type=Path)
NAME = _Name()
FILE_OR_STDIN = _NamedPath(dir_okay=False, allow_dash=True)

config_option = click.option("--config", "config_file", type=FILE, help="YAML file with settings.")
api_option = click.option("--api", help="URL of the relay's API. Default: RELAY_API_URL, or the relay on this machine.")
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format."
)
limit_option = click.option(
    "--limit",
    type=WholeRange(1, 1000),
    default=50,
    show_default=True,
    help="Maximum number of entries, newest first.",
)
cursor_option = click.option("--cursor", help="Continue after the previous page's cursor.")
types_option = click.option(
    "--type",
    "types",
    multiple=True,
    help="Only this event type, or with a trailing * all with that prefix; repeatable.",
)
receivers_option = click.option(
    "--receiver",
    "receivers",
    type=NAME,
    multiple=True,
    help="Receiver of the message; repeatable. Default: the subscribers.",
)


def options(*some: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator that adds all these options, in this order."""

    def decorate(command: F) -> F:
        for option in reversed(some):
            command = option(command)
        return command

    return decorate


def program() -> str:
    """`relay` if the shell finds it; otherwise the path that the user typed, such as `.venv/bin/relay`."""
    typed = Path(sys.argv[0])
    return "relay" if typed.name != "relay" or shutil.which("relay") else str(typed)


def settings_from(config_file: Path | None) -> "Settings":
    """The settings of this process. Raises UserError."""
    from relay.config.setting_layers import CONFIG_FILE, load_settings  # some commands need none

    return load_settings({CONFIG_FILE: config_file}, os.environ)


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless `yes`. Raises RelayError for a no, UserError if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{question} Confirm with --yes")
    if not click.confirm(question):
        raise RelayError("not confirmed")
