"""The client's declarations against those of the API: a route, its parameters and its response are the same in both."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Unpack, get_args, get_origin, get_type_hints

import msgspec
import pytest

from relay.api.responses import JSON
from relay.api.route import Route
from relay.api.routes import ROUTES
from relay.client import endpoints, resources
from relay.client.api import RelayApi
from relay.client.call import ApiCall, Resource
from relay.client.errors import NotARelay
from relay.client.http import ApiResponse, decoded
from relay.client.open_words import open_words
from relay.schema.messages import DeliveryView, MessageView, WaitView
from tests.documents import ROOT

NO_METHOD: Final = frozenset(
    (
        "sendMessages",  # a batch is for producers without a client
        "takeWebhook",
        "askToSendWebhooks",
        "answerDelivery",  # relay.receiver answers
        "getThinPayload",  # its receiver has the whole URL
        "isAlive",
        "getMetrics",
        "listPublicKeys",  # for verifiers, which have libraries for it
        "getFrontPage",
        "getOpenApi",
        "getAsyncApi",
        "getAsyncApiOfTypes",
        "getDocs",
        "listProblems",
        "getProblem",
    )
)
"""Routes that are no methods of the client."""
BY_HAND: Final = frozenset({"sendMessage", "tail", "exportReceiver", "catchUpReceiver"})
"""Written as code, and not declared."""


def calls() -> Iterator[tuple[str, ApiCall[Any, Any]]]:
    known = {each for room in (endpoints, resources) for each in vars(room).values() if isinstance(each, type)}
    groups: list[type] = [
        RelayApi,
        *sorted((each for each in known if issubclass(each, Resource)), key=lambda each: each.__name__),
    ]
    for group in groups:
        for name, member in vars(group).items():
            if isinstance(member, ApiCall):
                yield f"{group.__name__}.{name}", member


CALLS: Final = dict(calls())
BY_SHAPE: Final = {(method, re.sub(r"\{\w+\}", "{}", path)): route for (method, path), route in ROUTES.items()}


def route_of(call: ApiCall[Any, Any]) -> Route:
    declared = call.declared
    return BY_SHAPE[declared.method, re.sub(r"\{\w+\}", "{}", declared.path)]


@pytest.mark.parametrize("name", CALLS)
def test_a_method_returns_the_response_of_its_route(name: str) -> None:
    call = CALLS[name]
    kinds = [answer.body.content.get(JSON) for answer in route_of(call).answers if answer.body is not None]
    assert call.kind is ApiResponse or call.kind in kinds or name == "Messages.get"


@pytest.mark.parametrize("name", CALLS)
def test_a_method_sends_what_its_route_takes(name: str) -> None:
    declared, route = CALLS[name].declared, route_of(CALLS[name])
    given = set(declared.parameters)
    if declared.in_query:
        taken = {parameter.name for parameter in route.parameters if parameter.place == "query"}
    else:
        kind = None if route.body is None else route.body.content[JSON]
        taken = set(getattr(kind, "model_fields", None) or getattr(kind, "__struct_fields__", None) or ())
    assert given <= taken


def hints(call: ApiCall[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The parameters of a method with their types, those of an `**Unpack` one by one."""
    for name, hint in get_type_hints(call._stub).items():
        if get_origin(hint) is Unpack:
            yield from get_type_hints(get_args(hint)[0]).items()
        else:
            yield name, hint


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.declared.method == "GET"])
def test_a_method_takes_many_values_of_a_parameter_exactly_where_its_route_does(name: str) -> None:
    query = {each.name: each.of for each in route_of(CALLS[name]).parameters if each.place == "query"}
    given = {each: hint for each, hint in hints(CALLS[name]) if each in query}
    many = {each for each, hint in given.items() if get_origin(hint) is Iterable}
    assert many == {each for each in given if get_origin(query[each]) is list}


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.declared.in_query])
def test_a_flag_of_a_method_has_no_third_state(name: str) -> None:
    """`False` is not sent: where it were not the default, the caller would get something else."""
    assert bool | None not in dict(hints(CALLS[name])).values()


def test_each_route_has_a_method() -> None:
    declared = {route_of(call).id for call in CALLS.values()}
    without = {route.id for route in ROUTES.values()} - declared
    assert without == NO_METHOD | BY_HAND, "declare the call in relay/client/resources.py, or add the id to NO_METHOD"


def without_words(schema: object) -> bool:
    if isinstance(schema, list):
        return all(map(without_words, schema))
    if not isinstance(schema, dict):
        return True
    words = [word for word in schema.get("enum", ()) if isinstance(word, str)]
    return not words and all(map(without_words, schema.values()))


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.kind is not ApiResponse])
def test_a_response_may_have_words_of_a_newer_relay(name: str) -> None:
    assert without_words(msgspec.json.schema(open_words(CALLS[name].kind), schema_hook=lambda _: {"type": "object"}))


def test_the_state_of_a_message_is_read_with_words_of_a_newer_relay() -> None:
    waits = WaitView("moon", None, None, "it is full")  # type: ignore[arg-type]
    delivery = DeliveryView("ci", "orbiting", "landed", 0, 0, None, waits, None, None, None, None, None, None)  # type: ignore[arg-type]
    view = MessageView(
        source_id="app",
        message_id="m-1",
        webhook_id="msg_1",
        type=None,
        status="launched",  # type: ignore[arg-type]
        state="landed",  # type: ignore[arg-type]
        received_at=None,
        at=None,
        duplicate=False,
        deliveries=(delivery,),
    )
    body = msgspec.json.encode(view)
    read = decoded(MessageView, ApiResponse(200, {}, body, "http://127.0.0.1"))
    assert isinstance(read, MessageView)
    assert msgspec.json.encode(read) == body


def named_on_the_page() -> set[str]:
    """The calls in the table of docs/python.md, as `messages.get`: those that follow a dotted one are of its group."""
    found = set[str]()
    for row in re.findall(r"^\| (`.+?) \|", (ROOT / "docs/python.md").read_text(), re.MULTILINE):
        for part in row.split(";"):
            group = ""
            for name in re.findall(r"`([\w.]+)`", part):
                group = name.rpartition(".")[0] or group
                found.add(f"{group}.{name.rpartition('.')[2]}".removeprefix("."))
    return found


def test_the_page_of_the_sdk_names_each_call() -> None:
    pages = re.compile("(_page|^page)$")
    declared = {name.replace("RelayApi.", "") for name in CALLS if not pages.search(name.rpartition(".")[2])}
    groups = {"EventTypes": "event_types"}
    wanted = {re.sub(r"^\w+(?=\.)", lambda group: groups.get(group[0], group[0].lower()), name) for name in declared}
    assert wanted - named_on_the_page() == set(), "the table of calls in docs/python.md"


@pytest.mark.parametrize("body", [b"?", b"\xff", b'{"more":' * 100_000])
def test_what_another_server_answers_is_named_as_such(body: bytes) -> None:
    with pytest.raises(NotARelay):
        decoded(MessageView, ApiResponse(200, {}, body, "http://127.0.0.1"))
