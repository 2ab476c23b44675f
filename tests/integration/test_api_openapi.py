"""Tests of the OpenAPI document: it is valid, covers every route, and its examples work; and tests of its pages."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema_rs
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator, FormatChecker
from msgspec import structs

from relay.api.openapi.document import problems_of
from relay.api.openapi.sent import DELIVERY, FAILURE, PING, RESULT, VERIFICATION, Sent
from relay.api.pages import KINDS
from relay.api.problems import WRONG_METHOD
from relay.api.route import Route
from relay.api.routes import ROUTES, create_app
from relay.api.waiters import FAILURES
from relay.cli.config import config
from relay.domain.exchange import Request
from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.domain.numbering import NumberGap
from relay.domain.own_events import message_of, turn_of
from relay.domain.receiver import Endpoint, Receiver, SigningPolicy
from relay.domain.requests import callback_request, nonce_request, ping_request, post_request
from relay.domain.result_delivery import notice_body
from relay.domain.times import rfc3339
from tests.integration.api_rig import NOW, Reply, Rig, document, problem, running_api
from tests.integration.api_rig import rig as rig
from tests.integration.api_world import KEY, described, world_for
from tests.integration.api_world import only_read as only_read

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def conforms(value: Any, schema: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """`schema`: of a document, with references into it."""
    rooted = {**schema, "components": whole["components"]}
    Draft202012Validator(rooted, format_checker=FormatChecker()).validate(value)


# --- the document ---------------------------------------------------------------------------------------------------


async def test_every_route_is_described_and_every_description_has_a_route() -> None:
    """A new resource needs a line in relay/api/routes.py."""
    async with running_api() as rig:
        routes = {
            (route.method, route.resource.canonical)
            for route in create_app(rig.context).router.routes()
            if route.method != "HEAD" and route.resource is not None
        }
        assert routes == set(ROUTES)
        found = document(await rig.get("/openapi.json"))
    told = {(method.upper(), path) for path, item in found["paths"].items() for method in item}
    assert told == routes


async def test_the_command_prints_what_is_served(rig: Rig) -> None:
    printed = CliRunner().invoke(config, ["openapi"], catch_exceptions=False).output
    assert json.loads(printed) == document(await rig.get("/openapi.json")) == described()


async def test_the_verbs_of_the_audit_are_a_noun_and_what_was_done() -> None:
    verbs = {route.verb for route in ROUTES.values() if route.verb is not None}
    assert len(verbs) > 20
    for verb in verbs:
        noun, _, done = verb.partition(".")
        assert noun.isalpha(), verb
        assert done.isalpha(), verb


def test_it_is_valid() -> None:
    from schemathesis.specs.openapi.definitions import OPENAPI_31  # its imports take time in each process

    found = described()
    jsonschema_rs.Draft202012Validator(OPENAPI_31).validate(found)  # in Python it took 5 s
    for schema in _schemas(found):
        jsonschema_rs.meta.validate(schema)
    ids = [operation.id for operation in ROUTES.values()]
    assert len(ids) == len(set(ids))
    for ref in _refs(found):
        assert ref.removeprefix("#/components/schemas/") in found["components"]["schemas"], ref


async def test_parameters_in_a_path_are_those_of_its_template() -> None:
    for operation in ROUTES.values():
        named = {one.name for one in operation.parameters if one.place == "path"}
        assert named == {part.strip("{}") for part in operation.path.split("/") if part.startswith("{")}, operation.id


def _schemas(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("schema", "x-item-schema"):
                yield value
            elif name == "schemas":
                yield from value.values()
            else:
                yield from _schemas(value)
    elif isinstance(node, list):
        for value in node:
            yield from _schemas(value)


def _refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (value for name, value in node.items() if name == "$ref")
        for value in node.values():
            yield from _refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from _refs(value)


# --- its examples ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ROUTES.values(), ids=lambda operation: str(operation.id))
@pytest.mark.asyncio(loop_scope="module")
async def test_an_example_is_answered_as_the_document_says(operation: Route, only_read: Rig) -> None:
    whole = described()
    async with world_for(operation, only_read) as rig:
        told = whole["paths"][operation.path][operation.method.lower()]
        if operation.body is not None and operation.example.body is not None:
            content = told["requestBody"]["content"][operation.example.content_type]
            conforms(content["examples"]["tried"]["value"], content.get("schema", {}), whole)
        reply = await send(rig, operation)
        assert reply.status == operation.example.status, reply.text
        answer = told["responses"][str(reply.status)]
        if "content" in answer:
            media_type = reply.headers["Content-Type"].partition(";")[0]
            content = answer["content"].get(media_type) or answer["content"]["*/*"]
            if "schema" in content and media_type == "application/json":
                conforms(document(reply), content["schema"], whole)


async def send(rig: Rig, operation: Route) -> Reply:
    example, target = operation.example, operation.path
    for name, value in example.path.items():
        target = target.replace(f"{{{name}}}", quote(value, safe=""))
    headers = {"Authorization": f"Bearer {KEY}", **example.headers}
    body = b""
    if example.body is not None:
        body = (example.body if isinstance(example.body, str) else json.dumps(example.body)).encode()
        headers["Content-Type"] = example.content_type
    query = f"?{urlencode(example.query)}" if example.query else ""
    return await rig.request(operation.method, target + query, body, headers)


# --- what the relay sends -------------------------------------------------------------------------------------------


def sent() -> Iterator[tuple[Sent, Request, Request]]:
    """Each kind of request, with all of its fields and with as few as possible."""
    signing = SigningPolicy(("standard", "github", "stripe", "http-message"), ("a secret",))
    post = Endpoint("https://receiver.example/", signing=signing, cloudevents=True)
    plain = Endpoint("https://receiver.example/")
    delivery = DeliveryId("ci", "github", "m-1")
    full = Hop(delivery, "push", "2026-01-01T00:00:00Z", "text/plain", sequence=1, accepted_ms=1)
    full = structs.replace(full, traceparent=TRACE, tracestate="vendor=1")
    bare, agent = Hop(delivery), "relay/1"
    yield (
        DELIVERY,
        _post(Receiver("ci", post, payload="thin", respond_async=5), full, 1, "https://relay.example/v1/answers/t"),
        _post(Receiver("ci", plain), bare, None, None),
    )
    answer = Hop(
        delivery,
        content_type="text/plain",
        outcome="answered",
        answer_status=200,
        answer_truncated=True,
        traceparent=TRACE,
        tracestate="vendor=1",
    )
    notice = Hop(
        delivery, content_type="application/problem+json", outcome="failed", reason="rejected", traceparent=TRACE
    )
    notice = structs.replace(notice, tracestate="vendor=1")
    least = Hop(delivery, content_type="application/problem+json", outcome="failed", reason="rejected")
    for kind, most, few in ((RESULT, answer, bare), (FAILURE, notice, least)):
        yield (
            kind,
            callback_request(post, most, b"", now=NOW, user_agent=agent, attempt=1),
            callback_request(plain, few, b"", now=NOW, user_agent=agent, attempt=1),
        )
    yield (
        PING,
        ping_request(post, "1", now=NOW, user_agent=agent),
        ping_request(plain, "1", now=NOW, user_agent=agent),
    )
    yield (
        VERIFICATION,
        nonce_request(post, "1", now=NOW, user_agent=agent, timeout_s=1),
        nonce_request(plain, "1", now=NOW, user_agent=agent, timeout_s=1),
    )


def _post(receiver: Receiver, hop: Hop, sequence: int | None, url: str | None) -> Request:
    return post_request(
        receiver,
        hop,
        b"",
        attempt=1,
        sequence=sequence,
        out_of_order=sequence is not None,
        gaps=() if sequence is None else (NumberGap(1, 2, "expired"),),
        now=NOW,
        answer_url=url,
        payload_url=url,
        user_agent="relay/1",
    )


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4])
def test_what_is_sent_has_the_headers_that_are_described(kind: int) -> None:
    described, most, least = list(sent())[kind]
    assert {header.name for header in described.headers} == {name for name, _ in most.headers}
    assert {header.name for header in described.headers if header.always} == {name for name, _ in least.headers}


def test_bodies_that_are_sent_are_as_described() -> None:
    found = described()
    hooks = found["webhooks"]
    own = {f"receiver.{turn}" for turn in ("offline", "back", "disabled", "gone", "moved", "returned")} | {
        "message.failed"
    }
    own |= {"incident.opened", "incident.resolved"}
    assert set(hooks) == {"delivery", "result", "failure", "ping", "verification"} | own
    content = hooks["ping"]["post"]["requestBody"]["content"]["application/json"]
    body = ping_request(Endpoint("https://receiver.example/"), "1", now=NOW, user_agent="relay").body
    conforms(json.loads(body), content["schema"], found)
    content = hooks["verification"]["post"]["requestBody"]["content"]["application/json"]
    asked = nonce_request(Endpoint("https://receiver.example/"), "1", now=NOW, user_agent="relay", timeout_s=1)
    conforms(json.loads(asked.body), content["schema"], found)
    notice = notice_body(DeliveryId("-", "github", "m-1"), 0, reason="invalid", detail="", attempts=0, last_status=None)
    content = hooks["failure"]["post"]["requestBody"]["content"]["application/problem+json"]
    conforms(json.loads(notice), content["schema"], found)
    turned = message_of(turn_of("receiver.gone", "ci", "acme", rfc3339(NOW), rfc3339(NOW)), "1").payload
    content = hooks["receiver.gone"]["post"]["requestBody"]["content"]["application/json"]
    conforms(json.loads(turned), content["schema"], found)


# --- problems -------------------------------------------------------------------------------------------------------


def test_every_problem_has_a_page_and_every_page_a_problem() -> None:
    told = {kind for operation in ROUTES.values() for kind in problems_of(operation)}
    assert told == {*KINDS.values(), *FAILURES} - {WRONG_METHOD}, "each is an answer of some route, but for no route"


async def test_the_type_of_a_problem_answers_with_a_page(rig: Rig) -> None:
    refused = problem(await rig.post("/v1/sources/app/messages?receiver=nobody"), 422, "unknown-receiver")
    shown = await rig.get(refused["type"])
    assert (shown.status, shown.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert refused["title"] in shown.text
    assert "check its spelling" in shown.text
    for name in KINDS:
        assert (await rig.get(f"/problems/{name}")).status == 200
        assert f'href="/problems/{name}"' in (await rig.get("/problems")).text
    assert "Expectation Failed" in (await rig.get("/problems/http-417")).text
    for name in ("nothing", "http-200", "http-999", "http-", "http-4%C2%B27", "<b>"):
        problem(await rig.get(f"/problems/{name}"), 404, "not-found")


# --- pages ----------------------------------------------------------------------------------------------------------


async def test_pages_need_nothing_from_anywhere_and_no_key() -> None:
    async with running_api(api_key=KEY) as rig:
        for path in ("/", "/docs", "/problems", "/problems/unavailable"):
            shown = await rig.get(path, Accept="text/html,application/xhtml+xml,*/*;q=0.8")
            assert (shown.status, shown.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
            assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
            assert shown.headers["X-Content-Type-Options"] == "nosniff"
            assert shown.headers["X-Frame-Options"] == "DENY"
            assert not any(word in shown.text for word in ("<script", "<link", "<img", "src=", "url("))
        problem(await rig.get("/", Host="evil.example"), 421, "unknown-host")
        problem(await rig.get("/docs?x=1"), 400, "invalid-request")


async def test_the_front_page_is_json_for_who_asks_for_that(rig: Rig) -> None:
    links = document(await rig.get("/", Accept="application/json"))["links"]
    page = await rig.get("/")
    for path in links:
        assert (await rig.get(path)).status == 200
        assert f'href="{path}"' in page.text


async def test_the_page_of_the_document_has_every_route_and_schema() -> None:
    async with running_api() as rig:
        text = (await rig.get("/docs")).text
        found = document(await rig.get("/openapi.json"))
    for operation in ROUTES.values():
        assert f'id="{operation.id}"' in text
    for name in found["components"]["schemas"]:
        assert f'<details id="{name}">' in text
