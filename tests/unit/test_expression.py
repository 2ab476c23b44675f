"""Expressions: results, bounds, and errors that name the place."""

import sys
import time

import pytest

from relay.domain.errors import ExpressionError
from relay.domain.expression import CALLBACK, OUTCOME, REQUEST, ROUTING, STATUS, Document, Expression, check_expression
from relay.domain.expression_library import environment
from relay.domain.request_form import RequestForm, fill_request
from relay.domain.template import Template, UrlRefused, check_url_template, template, tree, url_of, value_of

PUSH = {
    "ref": "refs/heads/main",
    "after": "abc",
    "commits": [{"id": "1", "message": None}, {"id": "2"}],
    "huge": 2**70,
    "nothing": None,
    "repository": {"id": 5, "statuses_url": "https://api.example/{sha}"},
}
VARIABLES = {
    "message": {"id": "m-1", "headers": {"x": "1"}, "type": "push"},
    "payload": PUSH,
    "delivery": {"receiver": "ci", "attempt": 1},
    "keep": {},
    "response": {"status": 201, "headers": {"location": "https://ci.example/queue/7/"}, "body": ""},
    "steps": [{"status": 200, "headers": {}, "body": {"executable": {"url": "https://ci.example/job/7/"}}}],
    "body": {"building": False, "result": None},
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("payload.ref.replace('refs/heads/', '')", "main"),
        ("payload.ref.split('/')[2]", "main"),
        ("payload['ref']", "refs/heads/main"),
        ("payload.commits.map(c, c.id)", ["1", "2"]),
        ("payload.commits[1].id", "2"),
        ("payload.huge", float(2**70)),
        ("payload.nothing", None),
        ("{'a': payload.nothing, 'b': [null]}", {"a": None, "b": [None]}),
        ("payload.?missing.orValue('none')", "none"),
        ("has(body.executable)", False),
        ("!body.building", True),
        ("steps[0].body.executable.url", "https://ci.example/job/7/"),
        ("string(payload.repository.id)", "5"),
        ("timestamp('2026-01-02T03:04:05Z')", "2026-01-02T03:04:05Z"),
        ("'aBc'.upperAscii() + 'x'.charAt(0)", "ABCx"),
        ("['a', 'b'].join('-')", "a-b"),
        ("'message.nonsense'", "message.nonsense"),
    ],
)
def test_a_result_is_json(text: str, result: object) -> None:
    check_expression(text, STATUS)
    assert Expression(text, STATUS).evaluate(VARIABLES) == result


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 +", "line 1, column 4"),
        ("payload.ref +\n nope", "line 2, column 2: undeclared reference to 'nope'; known variables: message, payload"),
        ("message.idd", "line 1, column 1: message has no field 'idd'; it has headers, id"),
        ("'a' + 1", "line 1, column 5: found no matching overload"),
        ("duration('3s')", "the result is duration, which JSON does not have"),
        ("payload.?ref", "which JSON does not have"),
        ("'" + "a" * 2_000 + "'", "at most 2000 characters"),
    ],
)
def test_a_wrong_expression_is_refused_with_its_place(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        check_expression(text, STATUS)
    assert error in str(raised.value)


def test_an_error_has_the_expression_in_one_line() -> None:
    with pytest.raises(ExpressionError, match=r"`payload.a \+ payload.b`: "):
        Expression("payload.a\n   + payload.b\n", OUTCOME).evaluate({"payload": {"a": 1, "b": "x"}})


def test_a_condition_is_true_or_false() -> None:
    check_expression("response.status == 201", OUTCOME, condition=True)
    check_expression("body.done", OUTCOME, condition=True)
    with pytest.raises(ValueError, match="the result is string, not true or false"):
        check_expression("'true'", OUTCOME, condition=True)
    with pytest.raises(ExpressionError, match="neither true nor false"):
        Expression("body.done", OUTCOME, "outcomes[0].when").is_true({"body": {"done": "yes"}})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("payload.missing", "keep.x: `payload.missing`: there is no field 'missing'"),
        ("payload.commits[7].id", "there is no element 7; the list has 2"),
        ("message.id", "there is no message yet"),
        ("1 / 0 == 1", "divide by zero"),
        ("payload.commits.id", "`payload.commits.id`: a field is read from a value that is not an object"),
        ("payload.ref[0]", "an element is read from a text, not from a list or an object"),
        ("payload.commits['a']", "the index of a list is a text, not an integer"),
        ("payload.ref + 1", "`+` does not work on a text and an integer"),
        ("-payload.ref", "`-` does not work on a text"),
        ("size(dyn(1))", "size() does not work on an integer"),
        ("dyn(1).startsWith('a')", "startsWith() does not work on an integer with a text"),
        ("payload.ref ? 1 : 2", "a condition is neither true nor false"),
        ("payload.commits.all(each, each)", "a condition is neither true nor false"),
        ("payload.ref.map(each, each)", "a loop needs a list or an object"),
        ("'a' in payload.ref", "`in` needs a list or an object on its right side"),
        ("{payload.commits: 1}", "the key of an object is a list"),
        ("[payload.?ref]", "keep.x: `[payload.?ref]`: the result is an optional value; add orValue()"),
    ],
)
def test_a_failure_names_expression_and_field(text: str, error: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        Expression(text, ROUTING, "keep.x").evaluate({"payload": PUSH})
    assert error in str(raised.value)


def test_a_byte_order_mark_is_no_part_of_the_json() -> None:
    variables = {"payload": Document(b'\xef\xbb\xbf{"ref": "main"}')}
    assert Expression("payload.ref", ROUTING).evaluate(variables) == "main"


def test_a_payload_that_is_not_json_is_an_error_only_where_it_is_needed() -> None:
    variables = {"payload": Document(b"\xff", "the payload"), "message": {"id": "m-1"}}
    assert Expression("message.id", ROUTING).evaluate(variables) == "m-1"
    with pytest.raises(ExpressionError, match="the payload is not JSON"):
        Expression("payload.ref", ROUTING).evaluate(variables)
    assert Expression("message.id != 'm-1' && payload.ref == ''", ROUTING).is_true(variables) is False
    with pytest.raises(ExpressionError, match="the payload is not JSON"):
        Expression("[payload.ref, message.id]", ROUTING).evaluate(variables)


@pytest.mark.parametrize("payload", [{"a": "x\0y"}, {"a": {"k\0": 1}}])
def test_a_text_is_not_cut_at_a_nul(payload: object) -> None:
    with pytest.raises(ExpressionError, match="NUL"):
        Expression("payload.a", ROUTING).evaluate({"payload": payload})


LARGE = {"payload": {"text": "a" * 2**20, "list": list(range(3_000)), "deep": [[0] * 100] * 100}}


@pytest.mark.parametrize(
    "text",
    [
        "payload.list.map(i, payload.text + payload.text)",
        "payload.list.all(i, payload.text.lowerAscii() != '')",
        "payload.list.map(i, payload.list.map(j, payload.list.map(k, k)))",
        "payload.text.replace('a', 'aaaaaaaaaaaa')",
        "'aaaaaaaaaa'" + ".replace('a', 'aaaaaaaaaa')" * 8,
        "payload.text.split('')",
        "payload.text + payload.text",
        "payload.list.map(i, payload.text)",
        "payload.list.all(i, payload.list != []) && payload.list.all(i, payload.list != [])",
        "payload.list.all(i, (payload.list.all(j, payload.list != [])))",
        "payload.text.split('a').all(i, true) && payload.text.split('a').all(i, payload.text != i)",
    ],
)
def test_an_evaluation_is_bounded(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text, ROUTING).evaluate(LARGE)


@pytest.mark.parametrize("text", ["payload.map(x, x)", "payload.filter(x, true)", "size(payload.map(x, x)) > 0"])
def test_lists_are_made_of_so_many_items_and_no_more(text: str) -> None:
    """Each iteration copies the list: ten thousand took seconds."""
    Expression(text, ROUTING).evaluate({"payload": list(range(2_000))})
    with pytest.raises(ExpressionError, match="too long for map and filter"):
        Expression(text, ROUTING).evaluate({"payload": list(range(3_000))})
    assert Expression("payload.all(x, x >= 0)", ROUTING).is_true({"payload": list(range(3_000))})


@pytest.mark.parametrize(
    "text",
    [
        "payload.text.split('a').size()",
        "payload.list.size()",
        "payload.list[0]",
        "payload.list",
        "payload.some.map(x, x).size()",
        "payload.text.lowerAscii()",
    ],
)
def test_the_expressions_of_a_request_are_bounded_together(text: str) -> None:
    """Each of them alone is within its own bounds; a thousand stopped the process for half a minute."""
    payload = {"text": "a" * 200_000, "list": list(range(100_000)), "some": list(range(2_000))}
    body = tree([f"${{{{ {text} }}}}"] * 200, REQUEST, "request.json")
    form = RequestForm(body_kind="json", body=body)
    with pytest.raises(ExpressionError, match="too large for so many expressions"):
        fill_request(form, {"payload": payload}, url="https://ci.example/", origins=())
    one = RequestForm(body_kind="json", body=tree([f"${{{{ {text} }}}}"], REQUEST, "request.json"))
    fill_request(one, {"payload": payload}, url="https://ci.example/", origins=())


def test_many_expressions_on_small_values_are_no_work() -> None:
    payload = {"commits": [{"id": f"{n}", "message": "x" * 5_000} for n in range(100)], "ref": "refs/heads/main"}
    texts = ["payload.ref", "payload.ref.split('/')[2]", "payload.commits.map(c, c.id)", "payload.commits[3].message"]
    body = tree([f"${{{{ {text} }}}}" for text in texts * 30], REQUEST, "request.json")
    fill_request(RequestForm(body_kind="json", body=body), {"payload": payload}, url="https://ci.example/", origins=())


def test_loops_one_after_another_are_not_nested_ones() -> None:
    """Each reads the list once, and not in every iteration of the one before it."""
    builds = [{"status": "success", "name": f"{at}", "more": ["x"] * 20} for at in range(100)]
    text = (
        "payload.all(each, each.status == 'success') ? 'success'"
        " : payload.exists(each, (each.status == 'failed')) ? 'failure'"
        " : size(payload.filter(each, each.status == 'canceled')) > 0 ? 'canceled' : 'error'"
    )
    assert Expression(text, ROUTING).evaluate({"payload": builds}) == "success"
    assert Expression(text, ROUTING).evaluate({"payload": [*builds, {"status": "canceled"}]}) == "canceled"


def test_a_value_that_is_nested_too_deeply_is_an_error() -> None:
    deep: object = 1
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(ExpressionError, match="nested too deeply"):
        Expression("payload", ROUTING).evaluate({"payload": deep})


def test_the_keys_of_a_result_are_in_order() -> None:
    """Those of the library are in another one in each process, and a repeated request would have another body."""
    found = Expression("payload", REQUEST).evaluate({"payload": {key: {"b": 1, "a": 2} for key in "zyxwvutsrqponm"}})
    assert isinstance(found, dict)
    assert [(key, list(inner)) for key, inner in found.items()] == [(key, ["a", "b"]) for key in "mnopqrstuvwxyz"]


def test_results_with_null_do_not_release_references_to_none() -> None:
    expression = Expression("{'a': payload.nothing, 'b': [payload.nothing, null]}", ROUTING)
    expression.evaluate({"payload": PUSH})
    before = sys.getrefcount(None)
    for _ in range(2_000):
        expression.evaluate({"payload": PUSH})
    assert sys.getrefcount(None) > before - 500


# --- templates ----------------------------------------------------------------------------------------------------


def test_a_text_with_one_expression_keeps_its_type() -> None:
    assert template("${{ payload.repository.id }}", STATUS).value(VARIABLES) == 5
    assert template("id ${{ payload.repository.id }}!", STATUS).value(VARIABLES) == "id 5!"
    assert template("${{ {'a': {'b': '}}'}}.a.b }}", STATUS).value(VARIABLES) == "}}"
    with pytest.raises(ExpressionError, match="the result is a list, which is no text"):
        template("ids ${{ payload.commits }}", STATUS, "request.text").value(VARIABLES)


def test_a_tree_is_filled_in_place() -> None:
    made = tree({"ref": "${{ payload.ref }}", "n": [1, None, "${{ payload.nothing }}"]}, STATUS, "request.json")
    assert value_of(made, VARIABLES) == {"ref": "refs/heads/main", "n": [1, None, None]}
    with pytest.raises(ValueError, match=r"request\.json\.a\[0\]: line 1, column 1"):
        tree({"a": ["${{nope}}"]}, STATUS, "request.json")


def test_an_expression_that_is_not_closed_is_refused() -> None:
    with pytest.raises(ValueError, match="is not closed"):
        template("a ${{ payload.ref }", STATUS)


def url(text: str, *origins: str, **values: object) -> str:
    made: Template = template(text, STATUS, "status_steps[0].url")
    return url_of(made, VARIABLES | values, base="https://ci.example/post", origins=origins or ("https://ci.example",))


def test_values_in_urls_are_encoded() -> None:
    given = {"message": {"id": "a b?c"}}
    assert url("https://ci.example/x/${{ message.id }}?id=${{ message.id }}", **given) == (
        "https://ci.example/x/a%20b%3Fc?id=a%20b%3Fc"
    )


def test_a_leading_expression_is_a_url_itself() -> None:
    assert url("${{ response.headers.location }}api/json") == "https://ci.example/queue/7/api/json"
    given = {"response": {"status": 201, "headers": {"location": "/queue/8/"}, "body": ""}}
    assert url("${{ response.headers.location }}api/json", **given) == "https://ci.example/queue/8/api/json"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/pipeline/${{ message.id }}/workflow", "https://ci.example/pipeline/7/workflow"),
        ("builds/${{ message.id }}", "https://ci.example/api/builds/7"),
        ("../buildsets/${{ message.id }}", "https://ci.example/buildsets/7"),
        ("?id=${{ message.id }}", "https://ci.example/api/post?id=7"),
        ("build?${{ message.id }}", "https://ci.example/api/build?7"),
        ("https://ci.example/build?${{ message.id }}", "https://ci.example/build?7"),
    ],
)
def test_a_url_may_be_relative_to_that_of_the_endpoint(text: str, expected: str) -> None:
    made = template(text, STATUS, "status_steps[0].url")
    check_url_template(made, allows_leading=True, allows_relative=True)
    given = VARIABLES | {"message": {"id": "7"}}
    assert url_of(made, given, base="https://ci.example/api/post", origins=["https://ci.example"]) == expected
    with pytest.raises(UrlRefused):
        url_of(
            made, given | {"message": {"id": ".."}}, base="https://ci.example/x?y", origins=["https://other.example"]
        )


@pytest.mark.parametrize(
    "text", ["//evil.example/${{ message.id }}", "ftp://ci/${{ message.id }}", "https:${{ message.id }}"]
)
def test_a_host_is_fixed_or_that_of_the_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="after the host and its slash"):
        check_url_template(template(text, STATUS), allows_leading=True, allows_relative=True)
    with pytest.raises(ValueError, match="after the host and its slash"):
        check_url_template(template("/x/${{ message.id }}", STATUS), allows_leading=True)


@pytest.mark.parametrize("ticket", ["../admin", "..", "a/b", "%2e%2e", "a\\b", ""])
def test_a_ticket_that_leads_elsewhere_is_refused(ticket: str) -> None:
    with pytest.raises(UrlRefused):
        url("https://ci.example/x/${{ message.id }}", message={"id": ticket})


@pytest.mark.parametrize(
    "location", ["https://evil.example/x", "//evil.example/", "https://ci.example@evil.example/", "ftp://ci.example/"]
)
def test_a_location_on_another_origin_is_refused_unless_allowed(location: str) -> None:
    given = {"response": {"status": 201, "headers": {"location": location}, "body": ""}}
    with pytest.raises(UrlRefused):
        url("${{ response.headers.location }}", **given)
    if location.startswith("https://evil"):
        assert url("${{ response.headers.location }}", "https://evil.example", **given) == location


def test_variables_of_the_callback_have_no_payload() -> None:
    check_expression("keep.url + answer.body.result", CALLBACK)
    with pytest.raises(ValueError, match="undeclared reference to 'payload"):
        check_expression("payload.ref", CALLBACK)


SLOW = "payload.text.matches('(a[ab]{900}z|b[ab]{900}y)')"


@pytest.mark.parametrize(
    "text",
    [SLOW, "matches(payload.text, payload.pattern)", "payload.texts.exists(each, each.matches('[ab]{900}z' + each))"],
)
def test_patterns_are_matched_within_a_bound(text: str) -> None:
    payload = {"text": "ab" * 100_000, "pattern": "[ab]*a[ab]{900}z", "texts": [f"{n}" for n in range(1_000)]}
    check_expression(text, REQUEST)
    begun = time.process_time()
    with pytest.raises(ExpressionError, match="its patterns take too long"):
        Expression(text, REQUEST).evaluate({"payload": payload})
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("payload.ref.matches('^refs/(heads|tags)/')", True),
        ("payload . ref . matches ('^heads')", False),
        ("matches(payload.ref, 'MAIN') || matches(payload.ref, '(?i)MAIN$')", True),
        ("payload.list[0].matches('^b?$') ? 1 : 2", 1),
        ("payload.list.filter(each, each.matches('^c'))", ["c.matches(1)"]),
        ("payload.matches + 'x.matches(y)'", "a field" + "x.matches(y)"),
        ("'(a) matches('.replace('a', 'b').matches('[(]b[)]')", True),
    ],
)
def test_matches_is_that_of_cel(text: str, result: object) -> None:
    payload = {"ref": "refs/heads/main", "list": ["b", "c.matches(1)"], "matches": "a field"}
    check_expression(text, REQUEST)
    assert Expression(text, REQUEST).evaluate({"payload": payload}) == result


def test_the_unbounded_matches_of_the_library_is_not_there() -> None:
    with pytest.raises(RuntimeError, match="undeclared reference to 'matches'"):
        environment(("payload",)).compile("payload.text.matches('a')")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("payload.text.matches('(')", r"invalid regular expression: missing \)"),
        ("payload.text.matches(payload.long)", "at most 2000 characters"),
        ("payload.number.matches('a')", r"matches\(\) does not work on an integer with a text"),
    ],
)
def test_a_pattern_that_cannot_be_matched_says_why(text: str, said: str) -> None:
    payload = {"text": "a", "long": "a" * 2_001, "number": 1}
    with pytest.raises(ExpressionError, match=said):
        Expression(text, REQUEST).evaluate({"payload": payload})
