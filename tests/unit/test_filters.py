"""Which messages a filter takes, which filters are refused and where, and that a payload is decoded at most once."""

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.config.encryption import KeyRing
from relay.config.filter_entry import FilterEntry
from relay.config.receiver_entry import ReceiverEntry
from relay.config.receivers_file import parse_receivers_file, raw_entry, resolve
from relay.config.redacted_entry import effective
from relay.control.patch import RECEIVER, Faulty, Rules, checked
from relay.domain.errors import UserError
from relay.domain.filters import FilterInput
from relay.domain.json_pointer import check_pointer, pointer_steps
from relay.domain.message import Message
from relay.domain.secrecy import MASK

RULES = Rules({}, (), KeyRing([bytes(32)]))
PUSH = {"ref": "refs/heads/main", "size": 3, "head": None, "tags": ["a", {"deep": True}], "a/b": 1, "m~n": 2, "": 0}


def message(payload: object = PUSH, **fields: Any) -> Message:
    encoded = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return Message("github", "m-1", None, payload=encoded, **fields)


def takes(declared: object, of: Message | None = None) -> bool:
    return FilterEntry.model_validate(declared).compiled().takes(FilterInput(of or message()))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"pointer": "/ref", "exact": "refs/heads/main"}, True),
        ({"pointer": "/ref", "exact": "refs/heads"}, False),
        ({"pointer": "/ref", "prefix": "refs/", "suffix": "/main"}, True),
        ({"pointer": "/ref", "prefix": "refs/", "suffix": "/next"}, False),
        ({"pointer": "/ref", "in": ["x", "refs/heads/main"]}, True),
        ({"pointer": "/head", "exists": True}, True),
        ({"pointer": "/head", "exact": None}, True),
        ({"pointer": "/nothing", "exact": None}, False),
        ({"pointer": "/nothing", "exists": False}, True),
        ({"pointer": "/nothing/within", "exists": False}, True),
        ({"pointer": "/size", "exact": 3.0}, True),
        ({"pointer": "/size", "gte": 3, "lt": 4}, True),
        ({"pointer": "/size", "gt": 3}, False),
        ({"pointer": "/size", "lte": 2.9}, False),
        ({"pointer": "/tags/0", "exact": "a"}, True),
        ({"pointer": "/tags/1/deep", "exact": True}, True),
        ({"pointer": "/tags/1/deep", "exact": 1}, False),
        ({"pointer": "/tags/1/deep", "gte": 0}, False),
        ({"pointer": "/tags/01", "exists": True}, False),
        ({"pointer": "/tags/-", "exists": True}, False),
        ({"pointer": "/tags", "exact": "a"}, False),
        ({"pointer": "/a~1b", "exact": 1}, True),
        ({"pointer": "/m~0n", "exact": 2}, True),
        ({"pointer": "/", "exact": 0}, True),
        ({"pointer": "", "exists": True}, True),
        ({"header": "Ce-Type", "exact": "push"}, True),
        ({"header": "ce-source", "in": ["github"]}, True),
        ({"header": "content-type", "prefix": "application/"}, True),
        ({"header": "X-Team", "exact": "core"}, True),
        ({"header": "x-team", "exact": "Core"}, False),
        ({"header": "x-other", "exists": False}, True),
    ],
)
def test_a_condition_takes(condition: dict[str, Any], expected: bool) -> None:
    of = message(event_type="push", content_type="application/json", headers=(("x-team", "core"),))
    assert takes(condition, of) is expected


@pytest.mark.parametrize("payload", [b"", b"no json", b'{"ref": NaN}', b"\xff", b"[" * 50_000 + b"]" * 50_000])
@pytest.mark.parametrize("exists", [True, False])
def test_of_a_payload_that_is_no_json_nothing_is_known(payload: bytes, exists: bool) -> None:
    condition = {"pointer": "/ref", "exists": exists}
    assert not takes(condition, message(payload))
    assert not takes({"not": condition}, message(payload))
    assert takes({"any": [condition, {"header": "ce-id", "exact": "m-1"}]}, message(payload))


@pytest.mark.parametrize(
    "inner", [{"pointer": "/nothing", "exact": 1}, {"pointer": "/ref", "gt": 1}, {"header": "x-a", "prefix": "b"}]
)
def test_the_contrary_of_what_does_not_apply_does_not_apply_either(inner: dict[str, Any]) -> None:
    assert not takes(inner)
    assert not takes({"not": inner})
    assert not takes({"not": {"not": inner}})
    known = {"pointer": "/size", "exact": 4}
    assert takes({"not": {"all": [inner, known]}})
    assert not takes({"not": {"any": [inner, known]}})
    assert takes({"any": [{"not": inner}, {"not": known}]})


def test_numbers_are_compared_exactly() -> None:
    large = 2**53 + 1
    assert takes({"pointer": "", "exact": large}, message(large))
    assert not takes({"pointer": "", "exact": large}, message(large - 1))
    assert takes({"pointer": "", "gt": large - 1}, message(large))
    assert takes({"pointer": "", "exact": 10**40 + 1}, message(10**40 + 1))


def test_a_payload_is_decoded_at_most_once_and_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def decode(payload: bytes, real: Callable[[bytes], object] = msgspec.json.decode) -> object:
        decoded.append(payload)
        return real(payload)

    monkeypatch.setattr(msgspec.json, "decode", decode)
    event = FilterInput(message())
    by_header = FilterEntry.model_validate({"header": "ce-id", "exact": "m-1"}).compiled()
    assert (by_header.takes(event), decoded) == (True, [])
    by_payload = FilterEntry.model_validate(
        {"all": [{"pointer": "/size", "gt": 1}, {"pointer": "/ref", "prefix": "r"}]}
    ).compiled()
    assert by_payload.takes(event)
    assert by_payload.takes(event)
    assert len(decoded) == 1


# against an evaluator that is as simple as can be

NAMES = st.sampled_from(["a", "b", "0", "a/b", "~"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 1.5, 2**53 + 1, "", "a", "ab"])
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
POINTERS = st.lists(NAMES, max_size=3).map(
    lambda steps: "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
)
NUMBERS = st.integers(-3, 3) | st.floats(-3, 3)
TESTS = st.fixed_dictionaries(
    {},
    optional={
        "exact": SCALARS,
        "in": st.lists(SCALARS, min_size=1, max_size=3),
        "prefix": st.sampled_from(["", "a", "b"]),
        "suffix": st.sampled_from(["", "a", "b"]),
        "exists": st.booleans(),
        "gt": NUMBERS,
        "gte": NUMBERS,
        "lt": NUMBERS,
        "lte": NUMBERS,
    },
).filter(bool)
TEXTS = st.fixed_dictionaries(
    {}, optional={"exact": st.sampled_from(["core", "x"]), "prefix": st.just("co"), "exists": st.booleans()}
).filter(bool)
CONDITIONS = st.builds(lambda pointer, tests: {"pointer": pointer, **tests}, POINTERS, TESTS) | st.builds(
    lambda name, tests: {"header": name, **tests}, st.sampled_from(["x-team", "x-none", "ce-id"]), TEXTS
)
FILTERS = st.recursive(
    CONDITIONS,
    lambda inner: (
        st.fixed_dictionaries({"all": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"any": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"not": inner})
    ),
    max_leaves=6,
)


def naive(declared: dict[str, Any], document: object, headers: dict[str, str]) -> bool | None:
    if "all" in declared:
        said = [naive(one, document, headers) for one in declared["all"]]
        return False if False in said else None if None in said else True
    if "any" in declared:
        said = [naive(one, document, headers) for one in declared["any"]]
        return True if True in said else None if None in said else False
    if "not" in declared:
        of = naive(declared["not"], document, headers)
        return None if of is None else not of
    value = naive_value(declared, document, headers)
    said = [naive_test(name, wanted, value) for name, wanted in declared.items() if name not in ("pointer", "header")]
    return False if False in said else None if None in said else True


MISSING: Any = object()


def naive_value(declared: dict[str, Any], document: Any, headers: dict[str, str]) -> Any:
    if "header" in declared:
        return headers.get(declared["header"], MISSING)
    for step in declared["pointer"].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(name, MISSING)
        elif isinstance(document, list) and re.fullmatch("0|[1-9][0-9]*", name) and int(name) < len(document):
            document = document[int(name)]
        else:
            return MISSING
    return document


def naive_test(name: str, wanted: Any, value: Any) -> bool | None:
    if name == "exists":
        return (value is not MISSING) is wanted
    if value is MISSING:
        return None
    if name == "exact":
        return type(value) not in (dict, list) and (type(value) is bool) == (type(wanted) is bool) and value == wanted
    if name == "in":
        return any(naive_test("exact", each, value) for each in wanted)
    if name in ("prefix", "suffix"):
        if not isinstance(value, str):
            return None
        return value.startswith(wanted) if name == "prefix" else value.endswith(wanted)
    if type(value) not in (int, float):
        return None
    return bool({"gt": value > wanted, "gte": value >= wanted, "lt": value < wanted, "lte": value <= wanted}[name])


@settings(max_examples=300, deadline=None)
@given(FILTERS, DOCUMENTS)
def test_it_takes_what_a_naive_evaluator_takes(declared: dict[str, Any], document: object) -> None:
    entry = FilterEntry.model_validate(declared)
    said = naive(declared, json.loads(json.dumps(document)), {"ce-id": "m-1", "x-team": "core"})
    assert entry.compiled().test(FilterInput(message(document, headers=(("x-team", "core"),)))) is said
    assert raw_entry(entry) == declared  # what the log gets


# declared


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"pointer": "/a", "exists": True}
    for _ in range(depth - 1):
        found = {"not": found}
    return found


@pytest.mark.parametrize(
    ("declared", "place", "says"),
    [
        ({}, "", "needs one of all, any, not, pointer, header"),
        ({"pointer": "/a", "header": "x-a", "exact": "b"}, "", "has pointer and header; leave out all but one"),
        ({"all": [{"pointer": "/a", "exists": True}], "exact": 1}, "", "'exact' is a test of a pointer or a header"),
        ({"pointer": "/a"}, "", "needs a test of the pointer: exact, in, prefix"),
        ({"all": []}, "/all", "at least 1 needed"),
        ({"not": {"any": [{"pointer": "/a", "exists": 1}]}}, "/not/any/0/exists", "allowed: true, false"),
        ({"pointer": "a", "exists": True}, "/pointer", "begins with /"),
        ({"pointer": "/a~2", "exists": True}, "/pointer", "~ in a name is written ~0"),
        ({"pointer": 1, "exists": True}, "/pointer", "not text"),
        ({"pointer": "/a", "gt": "3"}, "/gt", "not a number"),
        ({"pointer": "/a", "gt": True}, "/gt", "not a number"),
        ({"pointer": "/a", "gt": float("inf")}, "/gt", "not a finite number"),
        ({"pointer": "/a", "exact": [1]}, "/exact", "lists and mappings cannot be"),
        ({"pointer": "/a", "exact": 10**64}, "/exact", "more than 64 digits"),
        ({"pointer": "/a", "exact": "x" * 1_025}, "/exact", "at most 1024"),
        ({"pointer": "/a", "in": []}, "/in", "at least 1 needed"),
        ({"pointer": "/a", "in": ["a"] * 101}, "/in", "at most 100"),
        ({"pointer": "/a", "in": [{}]}, "/in/0", "cannot be"),
        ({"pointer": "/a", "equals": 1}, "/equals", "unknown field; known: all, any, exact, exists"),
        ({"pointer": "/a", "prefx": "b"}, "/prefx", "did you mean 'prefix'?"),
        ({"header": "authorization", "exists": True}, "/header", "not a header that a message can have"),
        ({"header": "ce-subject", "exists": True}, "/header", "not a header that a message can have"),
        ({"header": "x a", "exists": True}, "/header", "not a header that a message can have"),
        ({"header": "x-a", "exact": 1}, "/exact", "a header is text"),
        ({"header": "x-a", "in": ["1", 1]}, "/in", "a header is text"),
        ({"header": "x-a", "gt": 1}, "/gt", "a header is text"),
        (nested(9), "", "nested more than 8 deep, at not.not.not.not.not.not.not.not"),
        (nested(400), "", "nested more than 8 deep"),
        ({"any": [{"all": [{"pointer": "/a", "exists": True}] * 51}] * 2}, "", "more than 100 conditions"),
        ([], "", "not a mapping"),
    ],
)
def test_a_mistake_is_told_with_its_place(declared: object, place: str, says: str) -> None:
    draft = {"post_endpoint": "https://ci.example/", "sources": ["a"], "event_types": ["b"], "filter": declared}
    with pytest.raises(Faulty) as caught:
        checked(RECEIVER, draft, RULES)
    assert [fault.pointer for fault in caught.value.faults] == [f"/filter{place}"]
    assert says in str(caught.value)


def test_what_is_just_within_the_bounds_is_taken() -> None:
    takes(nested(8))
    takes({"all": [{"pointer": "/a", "in": ["x" * 1_024] * 100}] * 100})


def test_a_file_says_which_filter_is_wrong() -> None:
    with pytest.raises(UserError) as caught:
        parse_receivers_file(
            "receivers: {ci: {post_endpoint: 'https://ci.example/', sources: [a], event_types: [b],"
            " filter: {all: [{pointer: /a, exact: 1}, {pointer: b, exact: 1}]}}}",
            "r.yaml",
        )
    assert (
        str(caught.value) == "r.yaml: receivers.ci.filter.all[1].pointer: 'b' is not a JSON pointer; it begins with /"
    )


def test_a_filter_narrows_a_subscription() -> None:
    with pytest.raises(UserError, match=r"receivers\.ci\.filter: applies to a subscription, and there is none"):
        parse_receivers_file("receivers: {ci: {post_endpoint: 'https://ci.example/', filter: {pointer: /a, exact: 1}}}")


def test_it_refers_to_the_environment_as_all_texts_do() -> None:
    declared = {"pointer": "/ref", "in": ["${BRANCH}"]}
    entry = ReceiverEntry.model_validate(
        {"post_endpoint": "https://ci.example/", "sources": ["a"], "event_types": ["b"], "filter": declared}
    )
    receiver = resolve("ci", entry, {"BRANCH": "refs/heads/main"})
    assert receiver.filter is not None
    assert receiver.filter.takes(FilterInput(message()))
    assert resolve("ci", entry, {"BRANCH": "refs/heads/main"}) == receiver
    assert resolve("ci", entry, {"BRANCH": "other"}) != receiver


@pytest.mark.parametrize("text", ["a", "/a~", "/~2", "~1"])
def test_what_is_no_pointer(text: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON pointer"):
        check_pointer(text)


def test_the_steps_of_a_pointer() -> None:
    assert [pointer_steps(text) for text in ("", "/", "/a~1b/~01/0")] == [(), ("",), ("a/b", "~1", "0")]


def test_a_filter_is_shown_as_it_was_written_and_without_the_secrets_of_a_url() -> None:
    declared = {
        "all": [{"pointer": "/a", "exact": 1}, {"pointer": "/url", "exact": "https://x.example/?token=s3cret-1"}]
    }
    wants = {"post_endpoint": "https://ci.example/", "sources": ["a"], "event_types": ["b"], "filter": declared}
    shown = effective(ReceiverEntry.model_validate(wants))["filter"]
    assert shown == {
        "all": [{"pointer": "/a", "exact": 1}, {"pointer": "/url", "exact": f"https://x.example/?token={MASK}"}]
    }
