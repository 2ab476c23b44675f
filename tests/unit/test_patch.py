"""Patches of receivers: merged, validated like the file, and prepared for the log."""

import json
from typing import Any

import pytest

from relay.config.encryption import NO_KEYS, KeyRing
from relay.control.patch import (
    RECEIVER,
    Fault,
    Faulty,
    NoKey,
    Rules,
    check_name,
    checked,
    encrypted,
    merge_patch,
    opened,
    pointer,
)
from relay.domain.secrecy import MASK

RING = KeyRing([b"k" * 32])
RULES = Rules(
    {"CI_SECRET": "s-4711", "OTHER": "o", "SHORT": "whsec_AAAA", "file:123456789012": "f"}, {"CI_SECRET"}, RING
)
URL = "https://ci.example/hooks"
CANARY = "canary-4711"
REFERS = "it refers to OTHER, which is not set, or RELAY_API_SECRETS_FROM does not allow it"
SHUT = "it is encrypted with a key that no longer exists, or for another place; set it again"
HIDDEN = f"{MASK} stands for a secret that is not shown; leave it out to keep it, or set it again"


@pytest.mark.parametrize(
    ("target", "patch", "result"),  # the examples of RFC 7396, appendix A
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merging(target: Any, patch: Any, result: Any) -> None:
    before = json.dumps(target)
    assert merge_patch(target, patch) == result
    assert json.dumps(target) == before


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"retry": {"cap": "30s", "base": 60}}, Fault("/retry/cap", "30 s is less than base, 60 s")),
        ({"headers": {"a/b~c": "d"}}, Fault("/headers/a~1b~0c", "'a/b~c' is not the name of a header")),
        ({"codes": {"gone": [99]}}, Fault("/codes/gone/0", "99 is too small; at least 200")),
        ({"ordrering": "none"}, Fault("/ordrering", "unknown field; did you mean 'ordering'?")),
        ({"secret": "${OTHER}"}, Fault("/secret", REFERS)),
        ({"secret": ["${file:12}"]}, Fault("/secret/0", "a secret of a receivers file cannot be referred to")),
        ({"secret": KeyRing([b"x" * 32]).encrypted("s", ("receivers", "ci", "secret"))}, Fault("/secret", SHUT)),
        ({"bearer_token": MASK}, Fault("/bearer_token", HIDDEN)),
    ],
)
def test_a_mistake_and_its_place(fields: dict[str, object], fault: Fault) -> None:
    with pytest.raises(Faulty) as caught:
        checked(RECEIVER, {"post_endpoint": URL, **fields}, RULES)
    assert caught.value.faults == [fault]


def test_all_mistakes_are_told_and_no_secret_is() -> None:
    draft = {"secret": [CANARY, 1], "headers": {"x": f"{CANARY}\n"}, "bearer_token": f"{CANARY} ", "lane": 1}
    with pytest.raises(Faulty) as caught:
        checked(RECEIVER, draft, RULES)
    assert {fault.pointer for fault in caught.value.faults} == {
        "/secret/1", "/headers/x", "/bearer_token", "/lane", "/post_endpoint"
    }  # fmt: skip
    assert CANARY not in str(caught.value)


def test_what_a_variable_stands_for_is_checked_and_never_repeated() -> None:
    rules = Rules(RULES.variables, {"SHORT", "CI_SECRET"}, RING)
    assert checked(RECEIVER, {"post_endpoint": URL, "secret": "${CI_SECRET}"}, rules).secrets == ("${CI_SECRET}",)
    with pytest.raises(Faulty) as caught:
        checked(RECEIVER, {"post_endpoint": URL, "secret": "${SHORT}"}, rules)
    assert caught.value.faults == [Fault("/secret", "not valid with the values of its references")]


def test_every_secret_is_encrypted_and_comes_back() -> None:
    draft = {
        "post_endpoint": f"{URL}?token={CANARY}",
        "secret": [CANARY, "${CI_SECRET}"],
        "bearer_token": CANARY,
        "headers": {"x-key": CANARY},
        "labels": {"env": "production"},
        "retry": {"cap": "2h"},
    }
    raw = encrypted("ci", checked(RECEIVER, draft, RULES), RULES)
    assert CANARY not in json.dumps(raw)
    assert raw["retry"] == {"cap": 7200.0}
    assert opened("ci", raw, RULES) == {**draft, "retry": {"cap": 7200.0}}
    assert opened("cd", raw, RULES) == raw  # moved to another receiver they stay shut


def test_without_a_key_there_are_only_references() -> None:
    rules = Rules(RULES.variables, RULES.allowed, NO_KEYS)
    assert (
        encrypted("ci", checked(RECEIVER, {"post_endpoint": URL, "secret": "${CI_SECRET}"}, rules), rules)["secret"]
        == "${CI_SECRET}"
    )
    with pytest.raises(NoKey, match="set RELAY_SECRETS_KEY") as caught:
        encrypted("ci", checked(RECEIVER, {"post_endpoint": URL, "secret": CANARY}, rules), rules)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("name", [None, "", "CI", "-a", "a" * 64, "shared", "a\n", 7, ["a"], "ci:x"])
def test_names_that_no_receiver_can_have(name: object) -> None:
    with pytest.raises(Faulty) as caught:
        check_name(name)
    assert [fault.pointer for fault in caught.value.faults] == ["/name"]


def test_pointers_are_escaped_and_leave_out_what_pydantic_adds() -> None:
    assert pointer(("headers", "a/b~", "[key]")) == "/headers/a~1b~0"
    assert pointer(("secret", "(list)", 1)) == "/secret/1"
    assert pointer(()) == ""
