"""Requests in flight stay below the limit of file descriptors."""

import resource

import pytest

from relay.config.limits import KEPT, MOST_REQUESTS, descriptor_limit, most_requests
from relay.config.settings import Settings
from relay.delivery.egress import requests_of
from relay.domain.errors import UserError


@pytest.mark.parametrize(
    ("descriptors", "requests"),
    [(64, 8), (256, 64), (512, 256), (1024, 640), (8192, 7064), (1_048_576, MOST_REQUESTS)],
)
def test_some_descriptors_are_kept(descriptors: int, requests: int) -> None:
    assert most_requests(descriptors) == requests


def test_without_a_limit_memory_counts() -> None:
    assert most_requests(resource.RLIM_INFINITY) == MOST_REQUESTS


def test_a_number_that_there_are_no_descriptors_for_is_the_users_mistake() -> None:
    possible = descriptor_limit() - KEPT
    assert requests_of(Settings(max_requests=possible)) == possible
    with pytest.raises(UserError, match="RELAY_MAX_REQUESTS"):
        requests_of(Settings(max_requests=possible + 1))


def test_a_process_that_cannot_run_with_its_descriptors_says_so() -> None:
    assert requests_of(Settings(), 64) == 8
    with pytest.raises(UserError, match="may open 63 descriptors and needs at least 64; raise `ulimit -n`"):
        requests_of(Settings(), 63)
