"""Where the status GET goes, and what its response means."""

import json
import posixpath
import re
from codecs import BOM_UTF8
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.exchange import Exchange, NoResponse, Response
from relay.domain.headers import MOST_HEADER
from relay.domain.identity import DeliveryId, webhook_id
from relay.domain.outcome import Answered
from relay.domain.receiver import StatusMap
from relay.domain.status import (
    AskLater,
    NeverSeen,
    StatusGone,
    StatusReading,
    StatusTemplateError,
    StillRunning,
    check_template,
    read_status,
    status_url,
    unaskable,
)
from relay.domain.urls import location_url, malformed, same_origin

DELIVERY = DeliveryId("ci", "git/hub", "m 1")
NOW = 1_700_000_000.0


def url(template: str, body: bytes = b"", delivery: DeliveryId = DELIVERY) -> str:
    return status_url(template, delivery, response_body=body)


# --- templates --------------------------------------------------------------------------------------------------


def test_values_are_percent_encoded() -> None:
    assert (
        url("https://ci.example/x/{message_id}?w={webhook_id}&s={source_id}")
        == "https://ci.example/x/m%201?w=msg_2vdx4l6msvamuznoui5zynu7mk&s=git%2Fhub"
    )


@pytest.mark.parametrize(
    ("template", "separator"), [("https://ci.example/status", "?"), ("https://ci.example/status?key=1", "&")]
)
def test_without_placeholders_the_ids_become_query_parameters(template: str, separator: str) -> None:
    ids = "message_id=m%201&source_id=git%2Fhub&webhook_id=msg_2vdx4l6msvamuznoui5zynu7mk"
    assert url(template) == f"{template}{separator}{ids}"


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"id": "a.b;c"}', "a.b%3Bc"),
        (b'{"id": 17}', "17"),
        (b'{"id": 123456789012345678901234567890}', "123456789012345678901234567890"),
        (b'{"id": "50%"}', "50%25"),
        (b'{"x": [1, {}], "id": "\xc3\xa9"}', "%C3%A9"),
    ],
)
def test_fields_of_the_posts_response(body: bytes, value: str) -> None:
    assert url("https://ci.example/p/{response.id}/x", body) == f"https://ci.example/p/{value}/x"


def test_a_field_of_the_response_makes_no_url_that_is_too_long() -> None:
    template = "https://ci.example/p/{response.id}"
    longest = MOST_HEADER - len(url(template, b'{"id": "x"}')) + 1
    assert len(url(template, json.dumps({"id": "x" * longest}).encode())) == MOST_HEADER
    with pytest.raises(StatusTemplateError, match="more than 8,192 characters"):
        url(template, json.dumps({"id": "x" * (longest + 1)}).encode())


ELSEWHERE = [
    *(
        "..",
        ".",
        "../admin",
        "a/b",
        "/",
        "a\\b",
        "%2e%2e",
        "%2E.",
        ".%2e",
        "%252e%252e",
        "%2f",
        "a%2Fb",
        "%252F",
        "%5c",
    ),
    *("..;x", "%2e%2e;x=1", "..%3bx", "a\tb", "a%00", "a%250a", "a\x7f", "\u2028", "%c2%85", " ..", "%20.."),
]
HARMLESS = ["m 1", "...", "a..b", "v1.2", "50%", "100%25", "a;b", "ü", "%", "%2", "a%3Fb?c#d", "x@y:z", "%25252e"]


@pytest.mark.parametrize("value", ELSEWHERE)
@pytest.mark.parametrize("place", ["message_id", "source_id", "response.id"])
def test_what_could_lead_elsewhere_never_goes_into_a_path(value: str, place: str) -> None:
    delivery = DeliveryId("ci", value if place == "source_id" else "s", value if place == "message_id" else "m")
    body = json.dumps({"id": value}).encode()
    template = f"https://ci.example/x/{{{place}}}/y"
    with pytest.raises(StatusTemplateError, match=place):
        url(template, body, delivery)
    assert (unaskable(template, delivery) is not None) == (place != "response.id")
    asked = url(f"https://ci.example/x?y={{{place}}}", body, delivery)
    assert parse_qs(urlsplit(asked).query)["y"] == [value]
    assert unaskable(f"https://ci.example/x?y={{{place}}}", delivery) is None


@pytest.mark.parametrize("value", HARMLESS)
def test_harmless_values_are_encoded_and_asked_about(value: str) -> None:
    delivery = DeliveryId("ci", "s", value)
    assert unaskable("https://ci.example/{message_id}", delivery) is None
    path = url("https://ci.example/x/{message_id}", b"", delivery).removeprefix("https://ci.example/x/")
    assert unquote(path) == value
    assert path.isascii()
    assert not {"/", "?", "#", "\\"} & set(path)


@pytest.mark.parametrize("template", [".{message_id}", "{message_id}.", "{source_id}{message_id}", "{message_id};v=1"])
def test_dots_that_only_come_together_in_the_path(template: str) -> None:
    value = ".." if ";" in template else "."
    assert unaskable(f"https://ci.example/{template}", DeliveryId("ci", ".", value)) is not None


@given(st.text(min_size=1))
def test_no_server_finds_another_path_however_often_it_decodes(value: str) -> None:
    try:
        found = url("https://ci.example/base/{response.id}/end", json.dumps({"id": value}).encode())
    except StatusTemplateError:
        return
    path = urlsplit(found).path
    for _ in range(3):
        assert posixpath.normpath(path).startswith("/base/")
        assert path.count("/") == 3
        path = unquote(path)


def test_dots_lead_into_nested_objects() -> None:
    assert url("https://ci.example/{response.job.a~b}", b'{"job": {"a~b": 5}}') == "https://ci.example/5"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "the answer to the POST is not readable JSON, so it has no {response.id}"),
        (b"nope", "is not readable JSON"),
        (b"[]", "the answer to the POST has no {response.id}"),
        (b"{}", "the answer to the POST has no {response.id}"),
        (b'{"id": null}', "{response.id} of the answer to the POST is neither a text nor an integer"),
        (b'{"id": true}', "neither a text nor an integer"),
        (b'{"id": 1.5}', "neither a text nor an integer"),
        (b'{"id": ""}', "the answer to the POST has an empty {response.id}"),
        (b'{"id": {}}', "neither a text nor an integer"),
        (b'{"id": "x"', "is not readable JSON"),
        (b'{"id": "\xff"}', "is not readable JSON"),
        (b'{"id":' + b"[" * 100_000, "is not readable JSON"),
    ],
)
def test_a_field_that_is_not_there(body: bytes, fault: str) -> None:
    with pytest.raises(StatusTemplateError, match=re.escape(fault)):
        url("https://ci.example/{response.id}", body)


@pytest.mark.parametrize(
    "template",
    ["https://ci.example/{message_id}", "https://ci.example/s", "https://ci.example/{response.a.b}?s={source_id}"],
)
def test_good_templates(template: str) -> None:
    check_template(template)


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("https://ci.example/{id}", "unknown placeholder {id}"),
        ("https://ci.example/{}", "unknown placeholder {}"),
        ("https://ci.example/{response.}", "unknown placeholder"),
        ("https://ci.example/{response.a..b}", "unknown placeholder"),
        ("https://ci.example/{response}", "unknown placeholder"),
        ("https://ci.example/{message_id", "brace"),
        ("https://ci.example/message_id}", "brace"),
        ("https://ci.example/{{message_id}}", "brace"),
        ("https://{response.host}/x", "host"),
        ("https://ci.example{response.host}/x", "host"),
        ("https://ci.example/#{message_id}", "fragment"),
        ("https://ci.example/é", "ASCII"),
        ("https://ci.example/a b", "ASCII"),
    ],
)
def test_bad_templates(template: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check_template(template)


ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=50)


@given(ids, ids)
def test_an_id_cannot_leave_its_place(source_id: str, message_id: str) -> None:
    delivery = DeliveryId("ci", source_id, message_id)
    template = "https://ci.example/a/{source_id}/{message_id}/z"
    if unaskable(template, delivery):
        return
    parts = urlsplit(url(template, delivery=delivery))
    assert parts.netloc == "ci.example"
    assert [unquote(part) for part in parts.path.split("/")] == ["", "a", source_id, message_id, "z"]
    assert not {".", ".."} & set(parts.path.split("/"))
    query = parse_qs(urlsplit(url("https://ci.example/", delivery=delivery)).query)
    assert query == {
        "source_id": [source_id],
        "message_id": [message_id],
        "webhook_id": [webhook_id(source_id, message_id)],
    }


# --- Location ---------------------------------------------------------------------------------------------------

POST_URL = "https://ci.example/hooks/in?x=1"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/jobs/1", "https://ci.example/jobs/1"),
        ("jobs/1?y=2", "https://ci.example/hooks/jobs/1?y=2"),
        ("?y=2", "https://ci.example/hooks/in?y=2"),
        ("https://ci.example/j#frag", "https://ci.example/j"),
        ("https://CI.example:443/j", "https://CI.example:443/j"),
        ("//ci.example/j", "https://ci.example/j"),
        ("/jobs/%41é", "https://ci.example/jobs/%41%C3%A9"),
        ("http://ci.example/j", None),
        ("https://ci.example:8443/j", None),
        ("https://evil.example/j", None),
        ("//evil.example/j", None),
        ("https://ci.example@evil.example/j", None),
        ("https://user@ci.example/j", None),
        ("https://ci.example\\@evil.example/", None),
        ("/\\evil.example", None),
        ("/a\r\nb", None),
        ("/a b", None),
        ("https://ci.example:99999/j", None),
        ("https://ci.example:/j", None),
        ("https://[::1/j", None),
        ("javascript:alert(1)", None),
        ("/\udcff", None),
    ],
)
def test_location_counts_only_on_the_same_origin(location: str, expected: str | None) -> None:
    assert location_url(POST_URL, location) == expected


@given(st.text() | st.from_regex(r"(https?:)?/{0,3}[\w.@:\\/\[\]#?%-]{0,20}", fullmatch=True))
def test_no_location_leads_away(location: str) -> None:
    target = location_url(POST_URL, location)
    assert target is None or (malformed(target) is None and same_origin(POST_URL, target))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("https://a/x", "https://A:443/y", True),
        ("http://a", "http://a:80", True),
        ("https://a", "http://a", False),
        ("https://a", "https://a:444", False),
        ("https://a", "https://a.", False),
        ("https://a", "https://a:x", False),
    ],
)
def test_same_origin(a: str, b: str, same: bool) -> None:
    assert same_origin(a, b) is same


# --- reading ----------------------------------------------------------------------------------------------------

MAP = StatusMap("/status", done=frozenset({"success", "failed", "true", "3"}), running=frozenset({"pending"}))
MAP_RESULT = StatusMap("/job/state", frozenset({"done"}), frozenset(), result="/job/results/1")


def response(status: int, body: bytes = b"", *, truncated: bool = False, retry_after: str | None = None) -> Response:
    headers = {"content-type": "text/plain"} | ({} if retry_after is None else {"retry-after": retry_after})
    return Response(status, headers, body, truncated)


def read(exchange: Exchange, status_map: StatusMap | None = None) -> StatusReading:
    return read_status(exchange, status_map=status_map, now=NOW)


def test_a_rate_limit_is_waited_for() -> None:
    limited = Response(403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{NOW + 3000:.0f}"}, b"")
    assert read(limited) == AskLater(3000.0, whole=False, kind="status")


@pytest.mark.parametrize("status_map", [None, MAP])
@pytest.mark.parametrize(
    ("exchange", "reading"),
    [
        (response(202, retry_after="9"), StillRunning(9.0)),
        (response(204), StillRunning(None)),
        (response(404), NeverSeen()),
        (response(410), StatusGone()),
        (response(429, retry_after="9"), AskLater(9.0, whole=True, kind="not_now")),
        (response(503), AskLater(None, whole=True, kind="not_now")),
        (response(500, retry_after="9"), AskLater(9.0, whole=False, kind="status")),
        (response(302), AskLater(None, whole=False, kind="status")),
        (Response(200, {}, b'{"status": "succ', truncated=True, broken=True), AskLater(None, False, "cut_off")),
        (Response(202, {}, b"", truncated=True, broken=True), AskLater(None, False, "cut_off")),
        (Response(404, {}, b"", truncated=True, broken=True), NeverSeen()),
        (response(401), AskLater(None, whole=False, kind="status")),
        (NoResponse("timeout", "", sent=True), AskLater(None, whole=False, kind="timeout")),
    ],
)
def test_all_but_200(exchange: Exchange, reading: StatusReading, status_map: StatusMap | None) -> None:
    assert read(exchange, status_map) == reading


UNKNOWN_WORD = "its value at /status is in none of done, running and unknown"
NO_WORD = "it has no state at /status"


def test_a_200_can_say_that_it_never_saw_the_message() -> None:
    status_map = StatusMap("/status", frozenset({"success"}), frozenset(), unknown=frozenset({"not_found"}))
    assert read(response(200, b'{"status": "not_found"}'), status_map) == NeverSeen()
    assert read(response(200, b'{"status": "lost"}'), status_map) == AskLater(None, False, "unknown_word", UNKNOWN_WORD)


def test_200_is_the_answer() -> None:
    assert read(response(200, b"ok")) == Answered(200, "text/plain", b"ok", truncated=False)
    assert read(response(200, b"o", truncated=True)) == Answered(200, "text/plain", b"o", truncated=True)


@pytest.mark.parametrize(
    ("body", "reading"),
    [
        (b'{"status": "pending"}', StillRunning(9.0)),
        (b'{"status": "exploded"}', AskLater(9.0, False, "unknown_word", UNKNOWN_WORD)),
        (b'{"status": null}', AskLater(9.0, False, "no_word", NO_WORD)),
        (b'{"status": ["success"]}', AskLater(9.0, False, "no_word", NO_WORD)),
        (b"{}", AskLater(9.0, False, "no_word", NO_WORD)),
        (b'"success"', AskLater(9.0, False, "no_word", NO_WORD)),
        (b"<html>", AskLater(9.0, whole=False, kind="not_json")),
        (b"", AskLater(9.0, whole=False, kind="not_json")),
        (b'{"status": "succ', AskLater(9.0, whole=False, kind="not_json")),
        (b'{"status": "\xff"}', AskLater(9.0, whole=False, kind="not_json")),
        (b"[" * 100_000, AskLater(9.0, whole=False, kind="not_json")),
    ],
)
def test_a_map_that_finds_no_end(body: bytes, reading: StatusReading) -> None:
    assert read(response(200, body, retry_after="9"), MAP) == reading


def test_a_byte_order_mark_is_no_part_of_the_json() -> None:
    body = BOM_UTF8 + b'{"status": "success", "id": 7}'
    assert read(response(200, body), MAP) == Answered(200, "text/plain", body, truncated=False)
    assert url("https://ci.example/{response.id}", body) == "https://ci.example/7"


def test_a_map_cannot_read_a_body_over_the_cap_and_says_so() -> None:
    reading = read(response(200, b'{"status": "success", "log": "', truncated=True), MAP)
    assert reading == AskLater(None, whole=False, kind="too_long", detail="its body exceeds RELAY_ANSWER_BODY_CAP")


@pytest.mark.parametrize("word", ['"success"', '"failed"', "true", "3", r'"su\u0063cess"'])
def test_a_map_that_finds_the_end(word: str) -> None:
    body = f'{{"x": [1.10], "status": {word}}}'.encode()
    assert read(response(200, body), MAP) == Answered(200, "text/plain", body, truncated=False)


def test_a_result_is_the_very_slice_that_the_receiver_wrote() -> None:
    body = b'{"job": {"state": "done", "results": [0, {"n": 1.10, "big": 123456789012345678901234567890} ]}}'
    assert read(response(200, body), MAP_RESULT) == Answered(
        200, "application/json", b'{"n": 1.10, "big": 123456789012345678901234567890}', truncated=False
    )


@pytest.mark.parametrize("results", [b"[]", b"{}", b"null", b"[1]"])
def test_without_a_result_the_whole_body_is_the_answer(results: bytes) -> None:
    body = b'{"job": {"state": "done", "results": ' + results + b"}}"
    assert read(response(200, body), MAP_RESULT) == Answered(200, "text/plain", body, truncated=False)


@given(st.binary(), st.sampled_from(["", "/", "/status", "/0", "/a~1b/~0", "nonsense"]))
def test_a_map_survives_any_body(body: bytes, pointer: str) -> None:
    status_map = StatusMap(pointer, frozenset({"0"}), frozenset(), result=pointer)
    assert isinstance(read(response(200, body), status_map), Answered | AskLater)
