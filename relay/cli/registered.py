"""The commands of `relay receivers` that call the API: register, show, change, test, pause and remove receivers."""

from typing import TYPE_CHECKING, Final, cast

import click

from relay.cli.api import PAGE, ApiOptions, api_command, with_api
from relay.cli.entries import (
    deleting,
    fields_of,
    from_option,
    match_option,
    patching,
    print_fields,
    print_warnings,
    set_option,
    text_in,
)
from relay.cli.options import CommandGroup, api_option, config_option, output_option
from relay.cli.table import at_most, cells, print_table, span
from relay.domain.identity import PROBE
from relay.schema.attempts import RequestView, ResponseView, TrialView
from relay.schema.receivers import (
    EndpointView,
    LaneView,
    NewReceiverView,
    ReceiverHealthView,
    ReceiverItem,
    ReceiverView,
    RemovalView,
    RotatedView,
    VerificationView,
)
from relay.schema.statistics import CountedView, HealthView, LastResponseView, StatsView
from relay.telemetry.redaction import escape_control

if TYPE_CHECKING:
    from relay.client import AsyncRelay
    from relay.client.call import Asyncio
    from relay.client.endpoints import Receivers, Sources

TEST_TIMEOUT_S: Final = 75.0
"""The API waits for a receiver for a minute at most."""
_COLUMNS: Final = ("NAME", "CONDITION", "HEALTH", "DECLARED BY", "OWNER", "LABELS", "LANE", "POST_ENDPOINT")
_STATS_COLUMNS: Final = ("HOUR", "ATTEMPTS", "SUCCESS", "P50", "P99", "OUTCOMES")
_callback_option = click.option("--callback", is_flag=True, help="NAME is a source_id: use its callback.")


@click.group(cls=CommandGroup)
def receivers() -> None:
    """Check and apply receivers.yaml; register receivers; show their health; pause and resume them."""


@receivers.command()
@click.argument("name")
@click.argument("post_endpoint", required=False)
@click.option("--owner", help="Id of the owner.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label; repeatable.")
@set_option
@from_option
@api_command
def create(
    call: ApiOptions,
    name: str,
    post_endpoint: str | None,
    owner: str | None,
    labels: tuple[str, ...],
    given: tuple[str, ...],
    document: str | None,
) -> None:
    """Register NAME with the URL POST_ENDPOINT. The fields are those of receivers.yaml; without a secret it gets
    one, which is shown once. Give secrets with --from: other users can see command lines."""
    fields = {field: value for field, value in fields_of(document, given).items() if field != "name"}
    in_document = fields.pop("post_endpoint", None)
    url = post_endpoint or (None if in_document is None else str(in_document))
    if owner is not None:
        fields["owner"] = owner
    if labels:
        named = {name: value for name, _, value in (label.partition("=") for label in labels)}
        others = fields.get("labels")
        fields["labels"] = {**others, **named} if isinstance(others, dict) else named
    call.show(call.run(lambda client: client.receivers.create(name, url, **fields)), _print_registered)


def _print_registered(known: NewReceiverView) -> None:
    click.echo(f"{known['name']}: registered, in {_lane(known)}")
    if known["secret"]:
        click.echo(f"secret, shown only this once: {known['secret']}")
    print_warnings(known.get("warnings", ()))


@receivers.command()
@click.argument("name")
@api_command
def show(call: ApiOptions, name: str) -> None:
    """Show the owner, effective settings and health of NAME. Secrets are masked."""
    call.show(call.run(lambda client: client.receivers.get(name)), _print)


def _print(known: ReceiverHealthView) -> None:
    labels = ", ".join(f"{label}={value}" for label, value in known["labels"].items())
    print_fields(
        ("name", known["name"]),
        ("declared by", known["declared_by"]),
        ("owner", known["owner"]),
        ("labels", labels),
        ("condition", _condition(known["condition"])),
        ("health", health_text(known["health"])),
        ("verification", _verified(known["verification"]) if known["verification"] else None),
        ("own lane, because it is hot, since", known.get("hot_since")),
        ("etag", known["etag"]),
        *(known["settings"] or {}).items(),
    )


def list_registered(call: ApiOptions, owner: str | None, labels: tuple[str, ...], states: tuple[str, ...]) -> None:
    """All receivers that the API lists, narrowed by its parameters, without that of `relay dev`, as on the pages."""
    call.show_list(
        lambda client: client.receivers.list(owner=owner, label=labels, state=states, limit=PAGE),
        _COLUMNS,
        _item,
        hides=lambda item: item["name"] == PROBE,
    )


def _item(item: ReceiverItem) -> tuple[str, ...]:
    labels = ",".join(f"{name}={value}" for name, value in item["labels"].items())
    owner, place = cells(item, "declared_by", "owner"), cells(item, "lane", "post_endpoint")
    return (item["name"], _condition(item["condition"]), health_text(item["health"]), *owner, labels or "-", *place)


def _condition(condition: str) -> str:
    """The condition for display. `up` is omitted: it says nothing new, and would mislead beside a bad health."""
    return "-" if condition == "up" else condition


def health_text(health: HealthView) -> str:
    """`failing 40.0% (503), oldest waits 5 min 10 s`: state, share of attempts that succeeded, last error, and how long
    the oldest message has waited."""
    rate, error, oldest_s = health["success_rate"], health["last_error"], health["oldest_waiting_s"]
    parts = (health["state"], None if rate is None else f"{rate:.1%}", None if error is None else f"({error})")
    return " ".join(filter(None, parts)) + ("" if oldest_s is None else f", oldest waits {span(oldest_s)}")


def _lane(known: ReceiverView) -> str:
    return "the shared lane" if (known["settings"] or {})["lane"] == "shared" else "a lane of its own"


def _messages(known: RemovalView) -> tuple[str, str]:
    messages = known["messages"]
    lane, parked = messages["in_lane"], messages["parked"]
    left = f"{lane['unfinished']} unfinished in {_where(lane)}, {parked['retries'] + parked['polls']} parked"
    return left, messages["then"]


def _where(lane: LaneView) -> str:
    return "its partition of the shared lane, with its neighbours'" if lane["lane"] == "shared" else "its lane"


patching(
    receivers,
    "name",
    "Change fields of NAME, which was registered over the API; the others stay unchanged.",
    lambda client: client.receivers.update,
    lambda known: f"in {_lane(known)}; ",
)
deleting(
    receivers,
    "name",
    "Remove NAME, which was registered over the API. Messages that it has accepted are finished first.",
    "messages",
    lambda client: client.receivers.delete,
    _messages,
)


def _of(client: "AsyncRelay", callback: bool) -> "Receivers[Asyncio] | Sources[Asyncio]":
    return client.sources if callback else client.receivers


@receivers.command()
@click.argument("name")
@_callback_option
@api_command
def test(call: ApiOptions, name: str, callback: bool) -> None:
    """Send NAME one signed relay.ping, even if it is paused, and show request and response. Exit code 1 unless it
    responds with a 2xx."""
    known = call.run(lambda client: _of(client, callback).test(name), timeout_s=TEST_TIMEOUT_S)
    call.show(known, print_exchange)
    exit_unless_passed(known)


def exit_unless_passed(known: TrialView) -> None:
    """Exits with code 1 unless the response is a 2xx."""
    response = known["response"]
    if response is None or not 200 <= response["status"] < 300:
        click.get_current_context().exit(1)


def print_exchange(known: TrialView) -> None:
    request, response, failure = known["request"], known["response"], known["failure"]
    took = f"in {known['duration_ms']:g} ms"
    print_message(">", f"{request['method']} {request['url']}", request)
    click.echo()
    if response is None or failure is not None:
        click.echo(f"no response {took}: {escape_control(failure['detail'] if failure else '')}")
        return
    print_message("<", f"{response['status']} {took}", response)
    if response["truncated"]:
        click.echo("(there is more)")


def print_message(mark: str, first: str, message: RequestView | ResponseView) -> None:
    for line in (first, *(f"{name}: {value}" for name, value in message["headers"].items())):
        click.echo(f"{mark} {escape_control(line)}")
    if message["body"]:
        click.echo()
        for line in message["body"].splitlines():
            click.echo(escape_control(line))


@receivers.command()
@click.argument("name")
@api_command
def verify(call: ApiOptions, name: str) -> None:
    """Run the verification handshake of NAME now, and print the result; exit code 1 if it failed. The relay also
    retries on its own, less and less often."""
    known = call.run(lambda client: client.receivers.verify(name))
    seen = known["verification"]
    needed = seen["state"] != "not_required"
    if call.is_json:
        call.show(known, lambda _known: None)
    elif not needed:
        click.echo(f"{name}: needs no verification (verification: none)")
    else:
        click.echo(f"{name}: {_verified(seen)}")
        if seen["state"] == "verified" and not known["proved"]:
            click.echo(f"this handshake failed: {known['detail']}")
    if needed and not known["proved"]:
        raise click.exceptions.Exit(1)


def _verified(seen: VerificationView) -> str:
    """The verification status of a receiver."""
    match seen["state"]:
        case "verified":
            rate = f", for {seen['allowed_rate']} requests a minute" if seen["allowed_rate"] else ""
            return f"verified by {seen['kind']} at {seen['verified_at']}{rate}"
        case "failed":
            again = f"retried at {seen['next_try_at']}" if seen["next_try_at"] else "not retried automatically"
            return f"not verified by {seen['kind']}: {seen['detail']}; {again}"
        case "pending":
            return f"not verified by {seen['kind']} yet"
        case _:
            return "not required"


@receivers.command()
@click.argument("name")
@click.option("--grace", default="1d", show_default=True, help="How long the old secret also signs; 0 for not at all.")
@click.option(
    "--secret-from", "source", metavar="FILE", help="File with the new secret; - is stdin. Default: a generated one."
)
@match_option
@api_command
def rotate(call: ApiOptions, name: str, grace: str, source: str | None, tag: str | None) -> None:
    """Give NAME, which was registered over the API, a new signing secret. It is shown only this once."""
    secret = None if source is None else text_in(source, "--secret-from").strip()
    known = call.run(lambda client: client.receivers.rotate(name, secret=secret, grace=grace, etag=tag))
    call.show(known, _print_rotated)


def _print_rotated(known: RotatedView) -> None:
    former = known["former_until"]
    click.echo(f"{known['name']}: the former secret signs {f'along until {former}' if former else 'no longer'}")
    if known["secret"]:
        click.echo(f"secret, shown only this once: {known['secret']}")
    if known["public_key"]:
        click.echo(f"public key: {known['public_key']}")


@receivers.command()
@click.argument("name")
@api_command
def stats(call: ApiOptions, name: str) -> None:
    """Show the outcomes of NAME's attempts within a day, and the durations of its responses."""
    call.show(call.run(lambda client: client.receivers.stats(name)), _print_stats)


def _print_stats(known: StatsView) -> None:
    click.echo(_last(known["last_response"]))
    hours = [hour for hour in known["hours"] if hour["attempts"]]
    print_table(_STATS_COLUMNS, [*(_counted(hour["hour"] or "-", hour) for hour in hours), _counted("24 hours", known)])


def _last(last: LastResponseView | None) -> str:
    if last is None:
        return "last response: none within a day"
    what = last["status"] if last["failure"] is None else f"none ({last['failure']})"
    return f"last response: {what}, in {last['duration_ms']:g} ms, at {last['at']}"


def _counted(what: str, counted: CountedView) -> tuple[str, ...]:
    rate = counted["success_rate"]
    outcomes = ", ".join(f"{count} {name}" for name, count in counted["outcomes"].items() if count)
    times = (at_most(counted["p50_ms"]), at_most(counted["p99_ms"]))
    return (what, str(counted["attempts"]), "-" if rate is None else f"{rate:.1%}", *times, outcomes or "-")


@receivers.command()
@click.argument("name")
@_callback_option
@api_option
@config_option
@click.option("--reason", default="", help="Reason, which other operators see.")
@output_option
@with_api
def pause(call: ApiOptions, name: str, callback: bool, reason: str) -> None:
    """Pause NAME: nothing is sent to it until it is resumed. Its messages wait; their max_age continues to count."""
    call.show(call.run(lambda client: _of(client, callback).pause(name, reason)), _print_health)


@receivers.command()
@click.argument("name")
@_callback_option
@api_command
def resume(call: ApiOptions, name: str, callback: bool) -> None:
    """Resume NAME: end its pause, a hold after a 410 or a long outage, or an open breaker."""
    call.show(call.run(lambda client: _of(client, callback).resume(name)), _print_health)


@receivers.command()
@click.argument("name")
@_callback_option
@api_command
def health(call: ApiOptions, name: str, callback: bool) -> None:
    """Show whether NAME is offline, disabled or paused, and since when; its breaker, and its waiting messages."""
    if callback:
        call.show(call.run(lambda client: client.sources.callback(name)), _print_health)
    else:
        call.show(call.run(lambda client: client.receivers.get(name)), _print_health)


def _print_health(known: EndpointView) -> None:
    click.echo(f"{known['name']}: {_health(known)}")


def _health(known: EndpointView) -> str:
    paused = _paused(known) if known["paused"] else "not paused"
    failing = f"failing since {known['failing_since']}" if known["failing_since"] else "failing"
    bad = known["health"]["state"] in ("degraded", "failing", "down")
    condition = {
        "up": f"{health_text(known['health'])}; " if bad else "",
        "failing": f"{failing}; ",
        "offline": f"offline, {failing}, and sent nothing but pings; ",
        "disabled": f"disabled since {known['disabled_since']}, {failing}; ",
    }
    parked = f"parked: {known['parked']['retries'] + known['parked']['polls']}"
    lane = known.get("in_lane")
    waiting = parked if lane is None else f"{parked}; unfinished in {_where(lane)}: {lane['unfinished']}"
    refused = f"refused: {known['refused']}; " if known["refused"] else ""
    if not (cast(ReceiverHealthView, known).get("settings") or {}).get("enabled", True):
        refused += "switched off; "
    if known["condition"] == "unverified" and (seen := cast(ReceiverHealthView, known)["verification"]) is not None:
        refused += f"sent nothing, as it is {_verified(seen)}; "
    return f"{refused}{condition.get(known['condition'], '')}{paused}; breaker {known['breaker']}; {waiting}"


def _paused(known: EndpointView) -> str:
    held = known["hold"]
    if held is None:
        return f"paused for {span(known['paused_for_s'] or 0.0)}"
    who = {"paused": "by hand", "gone": "for it returned 410", "disabled": "for it was down too long"}
    detail = f" ({held['detail']})" if held["detail"] else ""
    return f"paused until it is resumed, since {held['since']}, {who[held['reason']]}{detail}"
