"""The sample events are there, and are what they are called."""

import json

import pytest

from relay.domain.errors import UserError
from relay.sink.samples import load, names


@pytest.mark.parametrize("name", names())
def test_a_sample_is_a_json_object_of_its_type(name: str) -> None:
    sample = load(name)
    assert sample.name == name == f"github.{sample.event_type}"
    document = json.loads(sample.payload)
    action = sample.event_type.partition(".")[2]
    assert isinstance(document, dict)
    if action:
        assert document["action"] == action


def test_the_usual_events_are_there() -> None:
    assert {"github.push", "github.ping", "github.pull_request.opened", "github.workflow_run.completed"} <= set(names())
    assert load("github.pull_request.opened").event_type == "pull_request.opened"


@pytest.mark.parametrize("name", ["push", "github.NOTICE", "github.../../__init__", "", "github"])
def test_an_unknown_name_says_what_there_is(name: str) -> None:
    with pytest.raises(UserError, match=r"github\.push"):
        load(name)
