"""A route's declaration decodes the values that its handler gets."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from relay.api.access import OPEN
from relay.api.parameter import PageCursor, PageLimit, Parameter
from relay.api.problems import Problem
from relay.api.reading import query_of
from relay.api.route import UNAUDITED, DocumentedResponse, Example, json_of, route, routes_of
from relay.schema.messages import MessageRef


class _Resource:
    found: tuple[object, ...] = ()

    @route(
        "GET",
        "/v1/x/{name}/{offset}",
        scope=OPEN,
        noun="x",
        parameters=(Parameter("kind", Literal["big", "small"], "."), Parameter("label", list[str], ".")),
    )
    async def get(
        self,
        name: str,
        offset: int,
        kind: str | None,
        label: Sequence[str],
        owner: Annotated[str | None, "The owner."],
        dry_run: Annotated[bool, Parameter("dry_run", bool, "Change nothing.")],
        limit: PageLimit,
        cursor: PageCursor,
    ) -> web.Response:
        """Keep the values."""
        self.found = (name, offset, kind, label, owner, dry_run, limit, cursor)
        return web.Response()


def test_parameters_are_those_of_the_path_of_the_declaration_and_of_annotated_arguments() -> None:
    [declared] = routes_of(_Resource)
    names = ["name", "offset", "kind", "label", "owner", "dry_run", "limit", "cursor"]
    assert [each.name for each in declared.parameters] == names
    owner = declared.parameters[4]
    assert (owner.of, owner.description, owner.place) == (str, "The owner.", "query")


def test_the_usual_example_has_the_samples_of_the_path() -> None:
    [declared] = routes_of(_Resource)
    assert declared.example == Example(200, path={"name": "ci", "offset": "0"}, query={"limit": "10"})


async def _values(query: str) -> tuple[object, ...]:
    resource = _Resource()
    await resource.get(make_mocked_request("GET", f"/v1/x/ci/7?{query}", match_info={"name": "ci", "offset": "7"}))
    return resource.found


async def test_values_that_are_not_given_have_their_defaults() -> None:
    assert await _values("") == ("ci", 7, None, [], None, False, 50, "")


async def test_values_are_decoded_by_their_types() -> None:
    given = "kind=big&label=a&label=b&owner=x&owner=team&dry_run=true&limit=3&cursor=YQ"
    assert await _values(given) == ("ci", 7, "big", ["a", "b"], "team", True, 3, "a")


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("kind=huge", "kind is 'huge'; known: big, small"),
        ("dry_run=yes", "dry_run is 'yes'; true and false are allowed"),
        ("limit=0", "limit is '0'; a number from 1 to 1000 is allowed"),
        ("cursor=!", "cursor was not issued by this API"),
        ("nope=1", "unknown query parameter 'nope'; known: kind, label, owner, dry_run, limit, cursor"),
    ],
)
async def test_values_that_cannot_be_decoded_are_refused(query: str, detail: str) -> None:
    with pytest.raises(Problem) as caught:
        await _values(query)
    assert (caught.value.kind.status, caught.value.detail) == (400, detail)


def test_where_no_parameter_is_known_that_is_said() -> None:
    with pytest.raises(Problem, match="'nope'; known: none"):
        query_of(make_mocked_request("GET", "/v1/x?nope=1"))


async def _takes_a_body(_self: Any, body: Any) -> web.Response:
    """Take a body."""
    return web.Response(text=repr(body))


async def _takes_an_unknown(_self: Any, colour: str) -> web.Response:
    """Takes an undeclared field."""
    return web.Response(text=colour)


@pytest.mark.parametrize("method", [_takes_a_body, _takes_an_unknown])
def test_a_handler_takes_only_what_its_route_declares(method: Any) -> None:
    with pytest.raises(ValueError, match="declare"):
        route("GET", "/v1/x", scope=OPEN, noun="x")(method)


class _Answering:
    noun = "things"

    @route("POST", "/v1/x", scope=OPEN, audit=UNAUDITED, answer="It was made.", status=201, example=Example(201))
    async def make_x(self) -> MessageRef:
        """Make one."""
        return {"source_id": "github", "message_id": "m-1"}


async def test_what_a_handler_returns_is_sent_as_the_json_that_its_route_declares() -> None:
    [declared] = routes_of(_Answering)
    assert (declared.id, declared.noun, declared.answers) == (
        "makeX",
        "things",
        (DocumentedResponse(201, "It was made.", json_of(MessageRef)),),
    )
    response = await _Answering().make_x(make_mocked_request("POST", "/v1/x"))
    assert isinstance(response, web.Response)
    assert (response.status, response.content_type) == (201, "application/json")
    assert response.body == b'{"source_id":"github","message_id":"m-1"}'
