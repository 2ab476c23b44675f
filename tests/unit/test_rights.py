"""What roles have to be allowed: complete, for every topic and every Redis command that is used, and as documented."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.checks.log import refuse
from relay.cli.rights import rights
from relay.config.plan import ROLES
from relay.domain.errors import UserError
from relay.domain.rights import API, OPERATOR, REDIS_COMMANDS, RESULTS, SENDER, WHO, rights_of
from relay.domain.topics import Topics
from relay.state.redis.problems import _TRIED

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "relay" / "state" / "redis" / "scripts"


def printed(*arguments: str) -> str:
    return CliRunner().invoke(rights, arguments, catch_exceptions=False).output


def test_every_role_and_every_topic_is_thought_of() -> None:
    assert {*WHO} == {*ROLES, OPERATOR, SENDER, RESULTS}
    every = {spec.name for spec in Topics("p.").fixed()}
    for role in (*ROLES, OPERATOR):
        assert {right.probe for right in rights_of(Topics("p."), [role]) if right.kind == "topic"} == every


@pytest.mark.parametrize("topic", [spec.name for spec in Topics().fixed()])
def test_every_topic_has_somebody_who_writes_it_and_somebody_who_reads_it(topic: str) -> None:
    found = {
        each for role in ROLES for right in rights_of(Topics(), [role]) if right.probe == topic for each in right[3]
    }
    assert found >= {"Read", "Write"}


def test_a_role_that_talks_to_outsiders_has_no_more_than_it_needs() -> None:
    allowed = {right.name: right.operations for right in rights_of(Topics(), ["to-sender"])}
    assert {name for name, operations in allowed.items() if "Write" in operations} == {
        *("delivery_attempts", "failed_messages", "parked_messages", "receiver_config"),
    }
    allowed = {right.name: right.operations for right in rights_of(Topics(), ["to-receiver"])}
    assert "Write" not in allowed["to_receiver_"]
    assert "Read" not in allowed["to_sender"]


def test_several_roles_of_one_user_are_put_together() -> None:
    both = {right.name: right.operations for right in rights_of(Topics(), ["from-sender", "to-receiver"])}
    assert both["to_receiver_"] == ("Read", "Write", "DescribeConfigs")
    api = {right.name for right in rights_of(Topics(), [API])}
    assert {right.name for right in rights_of(Topics(), ROLES) if right.kind == "topic"} <= api


def test_redis_commands_are_those_of_the_scripts_and_of_the_clients() -> None:
    scripts = "".join(path.read_text() for path in SCRIPTS.glob("*.lua"))
    in_scripts = set(re.findall(r"call\('([A-Z]+)'", scripts))
    assert in_scripts <= set(REDIS_COMMANDS)
    assert set(_TRIED) == in_scripts - {"TIME", "PUBLISH"}, "what is tried at the start: without hints it works, too"
    sources = "".join(path.read_text() for path in SCRIPTS.parent.glob("*.py"))
    pairs = re.findall(r'\(b"([A-Z]+)"(?:, b"([A-Z]+)")?', sources)
    of_clients = {name if name in REDIS_COMMANDS else f"{name}|{second}" for name, second in pairs}
    assert of_clients - {"*|"} <= set(REDIS_COMMANDS)
    assert set(REDIS_COMMANDS) - in_scripts - of_clients == {"PING", "SELECT"}  # which the library sends


def test_the_page_has_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "least-rights.md").read_text()
    *_, block = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert block == printed()


def test_a_user_of_its_own_and_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_TOPIC_PREFIX", "team.")
    output = printed("--role", "to-sender", "--user", "bob")
    assert "--allow-principal User:bob --topic team.from_sender" in output
    assert "--group team.relay.to-sender --resource-pattern-type prefixed" in output
    assert "'~team.relay:*' '&team.relay:*'" in output
    [user] = json.loads(printed("--user", "relay", "-o", "json"))["users"]
    assert set(user["roles"]) == set(ROLES)
    [sender] = json.loads(printed("--role", "sender", "-o", "json"))["users"]
    assert sender["redis"] is None


def test_a_name_that_would_break_the_command() -> None:
    with pytest.raises(UserError, match="--user"):
        printed("--user", "two words")


def test_what_is_lacking_is_said_with_the_command() -> None:
    [lacking] = [right for right in rights_of(Topics(), ["from-sender"]) if right.name == "from_sender"]
    with pytest.raises(UserError) as refused:
        refuse([lacking], ["from-sender"])
    assert str(refused.value) == (
        "Kafka: this user may not Read, DescribeConfigs on topic from_sender; "
        "`relay rights --role from-sender` prints the commands that allow it"
    )
    refuse([], ROLES)


def test_what_may_never_be_needed_is_no_refusal() -> None:
    found = [right.at_once(Topics()) for right in rights_of(Topics(), [API])]
    assert not {"audit", "delivery_attempts"} & {right.name for right in found if right is not None}
    assert not {"Create", "Alter"} & {each for right in found if right is not None for each in right.operations}
