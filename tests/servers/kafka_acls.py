"""Executes `kafka-acls.sh --add` and `--remove` commands over the admin protocol, without starting a JVM for each."""

import argparse
import shlex
from collections.abc import Iterable, Iterator

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import for_code
from aiokafka.protocol.admin import CreateAclsRequest_v1, CreateAclsResponse_v1, DeleteAclsRequest_v1
from aiokafka.protocol.api import Request

_TYPES = {"topic": 2, "group": 3, "transactional_id": 5}
_PATTERNS = {"literal": 3, "prefixed": 4}
_OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Alter": 7, "Describe": 8, "DescribeConfigs": 10}
_ALLOW = 3
_Acl = tuple[int, str, int, str, str, int, int]


class _Adding(CreateAclsRequest_v1):  # type: ignore[misc]  # the library is untyped
    RESPONSE_TYPE = CreateAclsResponse_v1


class _Add(Request[_Adding]):  # type: ignore[misc]
    API_KEY = CreateAclsRequest_v1.API_KEY

    def __init__(self, acls: list[_Acl]) -> None:
        self._acls = acls

    def build(self, request_struct_class: type[_Adding]) -> _Adding:
        return request_struct_class(self._acls)


class _Remove(Request[DeleteAclsRequest_v1]):  # type: ignore[misc]
    API_KEY = DeleteAclsRequest_v1.API_KEY

    def __init__(self, acls: list[_Acl]) -> None:
        self._acls = acls

    def build(self, request_struct_class: type[DeleteAclsRequest_v1]) -> DeleteAclsRequest_v1:
        return request_struct_class(self._acls)


async def run(bootstrap: str, commands: Iterable[str]) -> None:
    """Execute the commands, as the user that `bootstrap` accepts without a password."""
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    await client.bootstrap()
    try:
        for command in commands:
            options = _parser().parse_args(shlex.split(command)[1:])
            request = _Remove(list(_acls(options))) if options.remove else _Add(list(_acls(options)))
            answer = await client.send(client.get_random_node(), request)
            results = answer.filter_responses if options.remove else answer.creation_responses
            assert [for_code(result[0]).__name__ for result in results] == ["NoError"] * len(results), answer
    finally:
        await client.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag in ("--add", "--remove"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--resource-pattern-type", choices=_PATTERNS, default="literal")
    for several in (*(f"--{kind.replace('_', '-')}" for kind in _TYPES), "--operation"):
        parser.add_argument(several, action="append", default=[])
    return parser


def _acls(options: argparse.Namespace) -> Iterator[_Acl]:
    for kind, number in _TYPES.items():
        for name in getattr(options, kind):
            for operation in options.operation:
                pattern = _PATTERNS[options.resource_pattern_type]
                yield number, name, pattern, options.allow_principal, "*", _OPERATIONS[operation], _ALLOW
