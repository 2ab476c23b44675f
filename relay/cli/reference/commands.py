"""Every command with its options, as the command line itself describes them."""

from collections.abc import Iterator

import click

from relay.cli.group import relay
from relay.cli.reference.markdown import code, described, paragraphs, table


def page() -> str:
    return paragraphs(*(_section(path, command) for path, command in every(relay, "relay")))


def every(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Each command below `group` by its whole name, groups before their commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every(command, f"{path} {name}")


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    options = [_option(each, context) for each in command.params if isinstance(each, click.Option) and not each.hidden]
    help_text = (command.help or "").split("\f")[0]
    parts = [f"## {path}", described(_plain(help_text)), f"```text\n{usage}\n```"]
    if options:
        parts.append(table(("option", "default", "what it does"), options))
    return paragraphs(*parts)


def _plain(text: str) -> str:
    """The text without paragraphs that click prints verbatim, such as drawings."""
    paragraphs = [each for each in text.split("\n\n") if "\b" not in each]
    return "\n\n".join(paragraphs)


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if not option.is_flag and not option.count:
        names += f" {option.make_metavar(context)}"
    record = option.to_info_dict()
    default = record["default"]
    shown = "" if default in (None, False, True, ()) or callable(default) else str(default)
    help = option.help or ""
    if option.multiple and "repeatable" not in help:
        help = f"{help} Repeatable.".strip()
    return code(names), code(shown), help
