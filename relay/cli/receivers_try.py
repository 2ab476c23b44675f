"""`relay receivers try`: what the relay would do with a payload, and with a receiver's responses to it."""

import os
import secrets
import time
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from relay.cli.api import ApiOptions, api_command
from relay.cli.options import FILE, NAME
from relay.cli.receivers_apply import file_option
from relay.cli.registered import TEST_TIMEOUT_S, exit_unless_passed, print_exchange, print_message
from relay.cli.send import payload_in
from relay.cli.table import print_json
from relay.client.endpoints import SampleFields, TrialFields
from relay.config.receivers_file import ReceiversFile, load_receivers_file, raw_entry
from relay.config.references import references_in, usable_variables
from relay.config.settings import Settings
from relay.control.resolve import EffectiveSources
from relay.delivery.egress import USER_AGENT
from relay.domain.errors import RelayError, UserError
from relay.schema.attempts import RequestView, TryView, WantedTrial
from relay.telemetry.redaction import escape_control


@click.command(name="try")
@click.argument("name")
@click.option("--payload", "payload_file", type=FILE, required=True, help="File with the payload of the message.")
@click.option(
    "--response",
    "response_files",
    type=FILE,
    multiple=True,
    help="File with the receiver's response, as `curl -i` prints it; further ones are responses to status GETs.",
)
@click.option("--send", "sends", is_flag=True, help="Send the request once, and show the real response.")
@click.option("--source", help="Source of the message. Default: the first that the receiver subscribes to.")
@click.option(
    "--type", "event_type", help="Event type of the message. Default: the first that the receiver subscribes to."
)
@click.option("--id", "message_id", type=NAME, help="Id of the message. Default: a new one.")
@click.option("--content-type", default="application/json", show_default=True, help="Content type of the payload.")
@click.option("--header", "headers", multiple=True, help="Header of the message, as 'x-team: core'; repeatable.")
@file_option
@api_command
def try_(
    call: ApiOptions,
    name: str,
    payload_file: Path,
    response_files: tuple[Path, ...],
    sends: bool,
    source: str | None,
    event_type: str | None,
    message_id: str | None,
    content_type: str,
    headers: tuple[str, ...],
    file: Path | None,
) -> None:
    """Show the request that NAME would get for a payload, and what its responses would mean. Nothing is sent.

    NAME is looked up in the receivers file. Without --file, it is looked up in a running relay if --api or
    RELAY_API_URL names one, or if the file does not have it. The output has the request, the meaning of each response
    with the rule that decided, the next status GET, and the callback to the sender; secrets are masked. The exit code
    is 1 if a field cannot be computed. With --send, the running relay sends the request, and the receiver acts on it.
    """
    wanted: TrialFields = {
        "text": _text_of(payload_file),
        "content_type": content_type,
        "headers": dict(_header(each) for each in headers),
        "type": event_type,
        "source": source,
        "id": message_id,
    }
    responses = [_text_of(each) for each in response_files]
    if sends:
        _send(call, name, wanted, responses)
        return
    if responses:
        wanted["response"], wanted["status_responses"] = responses[0], responses[1:]
    declared = _declaring(call, name, file)
    if declared is None:
        view = call.run(lambda client: client.receivers.dry_run(name, **wanted))
    else:
        view = _tried_here(declared, name, wanted, call.settings)
    call.show(view, _print_trial)
    if view["errors"]:
        click.get_current_context().exit(1)


def _send(call: ApiOptions, name: str, wanted: SampleFields, responses: list[str]) -> None:
    if responses:
        raise UserError("--response: with --send the response is the receiver's own")
    known = call.run(lambda client: client.receivers.test(name, **wanted), timeout_s=TEST_TIMEOUT_S)
    trial = known.get("trial")
    if call.is_json:
        print_json({**(trial or {}), **known})  # with the fields that it has without --send
    else:
        print_exchange(known)
        if trial is not None:
            click.echo()
            _print_responses(trial)
    exit_unless_passed(known)


def _text_of(file: Path) -> str:
    try:
        return payload_in(str(file)).decode()
    except UnicodeDecodeError:
        raise UserError(f"{file}: it is not UTF-8") from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise UserError(f"--header {text[:80]!r}: write it as 'name: value'")
    return name.strip(), value.strip()


# --- without a relay ------------------------------------------------------------------------------------------------


def _declaring(call: ApiOptions, name: str, file: Path | None) -> ReceiversFile | None:
    """The receivers file, if it has this receiver, and no relay was named. Raises UserError."""
    path = file or call.settings.receivers_file
    is_meant = file is not None or (call.api is None and call.settings.api_url is None and path.exists())
    known = load_receivers_file(path) if is_meant else None
    if known is not None and name in known.receivers:
        return known
    if file is not None:
        raise UserError(f"{file}: there is no receiver {name}")
    return None


def _tried_here(known: ReceiversFile, name: str, wanted: TrialFields, settings: Settings) -> TryView:
    """As the relay's API does it. A variable that is not set here gets a placeholder."""
    from relay.api.problems import Problem  # with a relay's answer there is no need for them
    from relay.api.trial import message_of, respond, try_view
    from workers.trial import DeliveryTrial

    environ = usable_variables(os.environ, settings.secrets_from)
    entries = [raw_entry(each) for each in (known.receivers[name], *known.sources.values())]
    missing = sorted({used for entry in entries for _, used in references_in(entry)} - environ.keys())
    chosen = replace(known, receivers={name: known.receivers[name]})
    receivers, sources = chosen.resolve(environ | {each: f"unset-{each}" for each in missing})
    effective = EffectiveSources()
    for each in sources.values():
        effective.put(each)
    asked = msgspec.convert(wanted, WantedTrial)
    try:
        message = message_of(receivers[name], asked, secrets.token_hex(8))
        source = effective.source(message.source_id)
        begun = DeliveryTrial(receivers[name], source, message, now=time.time(), user_agent=USER_AGENT)
        respond(begun, asked)
    except Problem as problem:
        raise RelayError(problem.detail) from None
    begun.trial.notes += [f"{each} is not set here: a placeholder takes its place" for each in missing]
    return try_view(begun)


# --- output ---------------------------------------------------------------------------------------------------------


def _print_trial(view: TryView) -> None:
    _print_request("request", view["request"])
    _print_responses(view)


def _print_responses(view: TryView) -> None:
    if view["outcome"] is not None:
        click.echo(escape_control(f"response: {view['outcome']} ({view['rule'] or 'no response'})"))
    for number, each in enumerate(view["readings"], 1):
        detail = f" ({each['detail']})" if each["detail"] else ""
        click.echo(escape_control(f"status response {number}: {each['meaning']}{detail}"))
    _print_request("next", view["next"])
    _print_request("callback", view["callback"])
    for fault in view["errors"]:
        click.echo(escape_control(f"error: {fault['place']}: {fault['detail']}".replace("error: : ", "error: ")))
    for note in view["notes"]:
        click.echo(escape_control(f"note: {note}"))


def _print_request(what: str, request: RequestView | None) -> None:
    if request is None:
        return
    click.echo(f"{what}:")
    print_message(">", f"{request['method']} {request['url']}", request)
    click.echo()
