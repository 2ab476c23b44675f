"""The reference, and the list of runbooks, made of the code: `make reference` writes them, and a test compares.

Each page is a function that returns the part of it in Markdown that is made of the code. A page more: a function, its
line in `PAGES`, and a file in docs/ with its title and introduction.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final, get_args

import click
import yaml

from relay.api.access import OPEN
from relay.api.asyncapi import asyncapi
from relay.api.pages import KINDS
from relay.api.route import Route
from relay.api.routes import ROUTES
from relay.api.waiters import FAILURES
from relay.cli.group import relay
from relay.config.entry_types import meanings_of
from relay.config.receivers_file import receivers_schema
from relay.config.setting_layers import ALSO_FROM, SECRET_SETTINGS, env_name, shown_value
from relay.config.settings import Settings
from relay.domain.reasons import REASONS
from relay.domain.times import format_duration
from relay.domain.topics import Topics
from relay.engine.work import WaitFor
from relay.state.attempts import Change, WaitReason
from relay.state.lanes import STAGES
from relay.telemetry.metrics import Metrics
from release.reference.log_events import log_events_page
from release.reference.markdown import code, codes, described, paragraphs, table
from workers.dependencies import Via

# --- settings ---------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    meanings = meanings_of(Settings)
    rows = [
        (code(env_name(name)), code(default_of(name)) or "none", _meaning_of_setting(name, meanings), code(name))
        for name in Settings.model_fields
    ]
    return table(("variable", "default", "what it is", "in YAML"), rows)


def _meaning_of_setting(name: str, meanings: dict[str, str]) -> str:
    choices = _texts_in(Settings.model_fields[name].annotation)
    parts = [meanings.get(name, "")]
    if choices:
        parts.append(f"One of {codes(choices)}.")
    if name in SECRET_SETTINGS:
        parts.append("Secret: never shown.")
    others = [variable for variable, field in ALSO_FROM.items() if field == name]
    if others:
        parts.append(f"Also {codes(others)}.")
    return " ".join(part for part in parts if part)


def _texts_in(annotation: object) -> list[str]:
    """The texts of all Literals within a type."""
    inner = get_args(annotation)
    return [text for each in inner for text in ([each] if isinstance(each, str) else _texts_in(each))]


def default_of(name: str) -> str:
    return shown_value(name, getattr(Settings(), name))


# --- receivers.yaml ---------------------------------------------------------------------------------------------------

ORDER: Final = ("ReceiverEntry", "SourceEntry", "CallbackEntry", "InboundEntry")
"""Parts that readers look for first; the others follow by name."""


def receivers_page() -> str:
    schema: Any = receivers_schema()
    parts = schema["$defs"]
    names = [*ORDER, *sorted(set(parts) - set(ORDER))]
    return paragraphs(*(_section_of_entry(name, parts[name]) for name in names if "properties" in parts[name]))


def _section_of_entry(name: str, part: Any) -> str:
    required = part.get("required", [])
    rows = [
        (
            code(field),
            "required" if field in required else _default_of_field(one),
            _form(one),
            str(one.get("description", "")),
        )
        for field, one in part["properties"].items()
    ]
    fields = table(("field", "default", "form", "what it is"), rows)
    return paragraphs(f"## {title_of(name)}", described(part.get("description")), fields)


def title_of(name: str) -> str:
    """`Breaker` for BreakerEntry."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Entry")).capitalize()


def _default_of_field(one: Any) -> str:
    default = one.get("default")
    if default is None or isinstance(default, list | dict):  # a mapping has its own section
        return ""
    if isinstance(default, bool):
        return code(str(default).lower())
    return code(format_duration(default) if isinstance(default, float) and is_duration(one) else str(default))


def is_duration(one: Any) -> bool:
    return any(str(each.get("pattern", "")).endswith("(ms|s|m|h|d)?)$") for each in [one, *one.get("anyOf", [])])


def _form(one: Any) -> str:
    if "$ref" in one:
        title = title_of(one["$ref"].rsplit("/", 1)[-1])
        return f"[{title.lower()}](#{title.lower().replace(' ', '-')})"
    if is_duration(one):
        return "duration"
    if "enum" in one:
        return codes(str(each) for each in one["enum"])
    for word in ("anyOf", "oneOf"):
        if word in one:
            forms = [_form(each) for each in one[word] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(forms))
    if one.get("type") == "array":
        inner = _form(one.get("items", {}))
        return f"list of {inner}" if inner else "list"
    if one.get("type") == "object":
        return "mapping"
    return str(one.get("type", one.get("const", "")))


# --- commands ---------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    return paragraphs(*(_section_of_command(path, command) for path, command in every(relay, "relay")))


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


def _section_of_command(path: str, command: click.Command) -> str:
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
    shown = str(option.default) if option.show_default and not option.is_flag else ""
    help = option.help or ""
    if option.multiple and "repeatable" not in help:
        help = f"{help} Repeatable.".strip()
    return code(names), code(shown), help


# --- routes, problems and reasons -------------------------------------------------------------------------------------


def routes_page() -> str:
    operations = sorted(ROUTES.values(), key=lambda one: one.noun)
    groups = [(noun, list(some)) for noun, some in groupby(operations, lambda one: one.noun)]
    return paragraphs(*(paragraphs(f"## {noun}", *map(_section_of_route, some)) for noun, some in groups))


def _section_of_route(operation: Route) -> str:
    need = operation.scope
    scopes = "" if need is OPEN else f"Takes a key with {codes((*need.scopes, 'admin'))}."
    audited = "" if operation.verb is None else f"Audited as {code(operation.verb)}."
    parts = [
        f"### {operation.method} {operation.path}",
        described(f"{operation.summary}. {operation.description}"),
        " ".join(filter(None, (scopes, audited))),
    ]
    if operation.parameters:
        rows = [
            (code(one.name), one.place + (", required" if one.place == "path" else ""), one.description)
            for one in operation.parameters
        ]
        parts.append(table(("parameter", "in", "what it is"), rows))
    answers = [(str(answer.status), answer.description) for answer in operation.answers]
    answers += [(str(kind.status), f"{code(kind.name)}: {kind.title}") for kind in operation.problems]
    parts.append(table(("status", "when"), sorted(answers)))
    return paragraphs(*parts)


def reasons_page() -> str:
    rows = [(code(reason), one.party, one.advice) for reason, one in REASONS.items()]
    return table(("reason", "who acts", "what to do"), rows)


def problems_page() -> str:
    refusals = (kind for kind in KINDS.values() if kind not in FAILURES)
    ordered = sorted(refusals, key=lambda kind: (kind.status, kind.name))
    rows = [(code(kind.name), str(kind.status), kind.title, kind.advice) for kind in ordered]
    return table(("type", "status", "title", "what to do"), rows)


# --- topics -----------------------------------------------------------------------------------------------------------


def topics_page() -> str:
    document: Any = asyncapi(Topics())
    channels = document["channels"].values()
    messages = document["components"]["messages"]
    return paragraphs(
        described(document["info"]["description"]),
        "## Topics",
        table(("topic", "what is there", "forms of records", "for others"), [_channel(each) for each in channels]),
        "## Forms of records",
        *(_message(each, document) for each in messages.values()),
    )


def _channel(channel: Any) -> tuple[str, str, str, str]:
    forms = codes(channel["messages"])
    return code(channel["address"]), channel["summary"], forms, "" if channel.get("x-relay-internal") else "yes"


def _message(message: Any, document: Any) -> str:
    head = f"### {message['title']}\n\n{described(message['summary'])}"
    headers = message.get("headers")
    if headers is None:
        return head
    found = _resolved(headers, document)
    required = found.get("required", [])
    rows = [
        (code(name), "yes" if name in required else "", each.get("description", ""))
        for name, each in found.get("properties", {}).items()
    ]
    return f"{head}\n\n{table(('header', 'required', 'what it is'), rows)}"


def _resolved(schema: Any, document: Any) -> Any:
    while "$ref" in schema:
        found = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


# --- metrics ----------------------------------------------------------------------------------------------------------

_LEGS: Final = ("to_receiver", "answer", "to_sender")
_SAYS_NOTHING_OF_AN_ENDPOINT: Final = ("rate", "settling", "max_in_flight")


def metrics_page() -> str:
    return paragraphs(_metrics(), "## Values of labels", _values_of_labels())


def _metrics() -> str:
    rows = [
        (code(family.name), family.kind, codes(family.label_names), family.meaning) for family in Metrics("").families
    ]
    return table(("metric", "kind", "labels", "meaning"), rows)


def _values_of_labels() -> str:
    outcomes = ("done", "dead", *(change.value for change in (Change.RETRY, Change.DOUBT, Change.RELEASED)))
    whys = [why for why in get_args(WaitReason) if why not in _SAYS_NOTHING_OF_AN_ENDPOINT]
    attempts = ("relay_delivery_attempts_total", "relay_status_polls_total", "relay_callback_attempts_total")
    sets: list[tuple[str, tuple[str, ...], Iterable[str]]] = [
        ("outcome", attempts, outcomes),
        ("role", ("relay_consumer_lag", "relay_requests_in_flight", "relay_waiting_records"), STAGES),
        ("reason", ("relay_waiting_records",), get_args(WaitFor)),
        ("reason", ("relay_failed_total",), REASONS),
        ("why", ("relay_endpoints_held",), whys),
        ("via", ("relay_answers_total",), get_args(Via)),
        ("leg", ("relay_end_to_end_seconds",), _LEGS),
    ]
    return table(("label", "of", "values"), [(code(label), codes(of), codes(values)) for label, of, values in sets])


# --- alerts -----------------------------------------------------------------------------------------------------------

_RULES: Final = Path(__file__).parents[2] / "docker" / "prometheus" / "relay-rules.yml"


def alerts_page() -> str:
    groups = yaml.safe_load(_RULES.read_text(encoding="utf-8"))["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    rows = [
        (
            f"[{rule['alert']}]({rule['alert']}.md)",
            rule["labels"]["severity"],
            _codes_in(rule["annotations"].get("checks")),
        )
        for rule in alerts
    ]
    return table(("alert", "severity", "checks of `relay doctor`"), rows)


def _codes_in(names: str | None) -> str:
    return codes(names.split(", ")) if names else ""


# --- all of them ------------------------------------------------------------------------------------------------------


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "reference/settings.md": settings_page,
    "reference/receivers-yaml.md": receivers_page,
    "reference/commands.md": commands_page,
    "reference/routes.md": routes_page,
    "reference/topics.md": topics_page,
    "reference/reasons.md": reasons_page,
    "reference/problems.md": problems_page,
    "reference/metrics.md": metrics_page,
    "reference/log-events.md": log_events_page,
    "runbooks/README.md": alerts_page,
}
"""Generators of the pages, by path in docs/."""
NOTE: Final = "<!-- From here on made of the code by `make reference`: change it there. -->"


def made_anew(directory: Path, name: str) -> str:
    """A page: its beginning as it is, and everything behind the note as the code is."""
    written = (directory / name).read_text(encoding="utf-8").partition(NOTE)[0]
    return f"{written}{NOTE}\n\n{PAGES[name]()}\n"
