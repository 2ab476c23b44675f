"""`relay rights`: what each role has to be allowed on Kafka and Redis, as commands of their own tools."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from relay.cli.options import config_option, output_option, settings_from
from relay.cli.table import show_as
from relay.domain.errors import UserError
from relay.domain.rights import OPERATOR, REDIS_COMMANDS, RESULTS, SENDER, WHO, kafka_commands, redis_rule, rights_of
from relay.domain.topics import Topics

_HEAD: Final = "KAFKA='--bootstrap-server kafka:9092 --command-config admin.properties'"
_OUTSIDE: Final = {
    SENDER: "produces messages to Kafka itself",
    RESULTS: "reads its results from Kafka (callback: kafka), with a group of its own",
}


@click.command()
@click.option("--role", "roles", multiple=True, type=click.Choice(WHO), help="Only for this role; repeatable.")
@click.option(
    "--user", help="User on Kafka and Redis. Default: relay-ROLE. With several roles, it gets the rights of all."
)
@config_option
@output_option
def rights(roles: tuple[str, ...], user: str | None, config_file: Path | None, output: str) -> None:
    """Print the commands that give each role the least rights it needs, on Kafka and on Redis.

    It connects to nothing. `operator` runs commands such as `relay topics apply` and `relay recover`; `sender` and
    `results` are senders that use Kafka themselves. With --user and no --role: what `relay run` needs, which has all
    roles in one process.
    """
    topics = Topics(settings_from(config_file).topic_prefix)
    users = _users(roles or WHO, user, is_given=bool(roles))
    found = {"users": [_as_json(topics, name, of_user) for name, of_user in users]}
    show_as(found, output, lambda _: click.echo("\n".join(text_of(topics, users))))


def _users(roles: tuple[str, ...], user: str | None, *, is_given: bool) -> list[tuple[str, tuple[str, ...]]]:
    """The roles of each user."""
    if user is None:
        return [(role if role in _OUTSIDE else f"relay-{role}", (role,)) for role in roles]
    if not is_given:
        roles = tuple(role for role in roles if role not in _OUTSIDE and role != OPERATOR)
    if any(character.isspace() for character in user) or not user:
        raise UserError(f"--user: {user!r} is not a valid name")
    return [(user, roles)]


def text_of(topics: Topics, users: Iterable[tuple[str, tuple[str, ...]]]) -> list[str]:
    """The lines that are printed."""
    lines = [_HEAD, f"COMMANDS='{' '.join(f'+{name.lower()}' for name in REDIS_COMMANDS)}'"]
    for user, roles in users:
        about = ", ".join(_OUTSIDE.get(role, role) for role in roles)
        lines += ["", f"# {user}: {about}", *_commands(topics, user, roles)]
        if any(role not in _OUTSIDE for role in roles):
            lines.append(_redis_command(topics, user))
    return lines


def _commands(topics: Topics, user: str, roles: tuple[str, ...]) -> list[str]:
    commands = kafka_commands(rights_of(topics, roles), f"User:{user}")
    if RESULTS in roles:
        commands.append(
            f"kafka-acls.sh $KAFKA --add --allow-principal User:{user} --group {user}"
            " --resource-pattern-type prefixed --operation Read"
        )
    return commands


def _redis_command(topics: Topics, user: str) -> str:
    words = redis_rule(topics, user)
    return f"redis-cli ACL SETUSER {shlex.join(words[: -len(REDIS_COMMANDS)])} $COMMANDS"


def _as_json(topics: Topics, user: str, roles: tuple[str, ...]) -> dict[str, object]:
    found = rights_of(topics, roles)
    shown = [
        {"kind": one.kind, "name": one.name, "prefixed": one.prefixed, "operations": list(one.operations)}
        for one in found
    ]
    redis = redis_rule(topics, user) if any(role not in _OUTSIDE for role in roles) else None
    commands = _commands(topics, user, roles)
    return {"user": user, "roles": list(roles), "kafka": shown, "commands": commands, "redis": redis}
