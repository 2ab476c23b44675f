"""How far a message is: when it is over, and when it has failed."""

import pytest

from relay.domain.state import DeliveryProgress, has_failed, is_over

ANSWERED = "response_received_from_receiver"


@pytest.mark.parametrize(
    ("delivery", "over", "failed"),
    [
        (DeliveryProgress("arrived", None), False, False),
        (DeliveryProgress("delivered_to_receiver", None), False, False),
        (DeliveryProgress(ANSWERED, "pending"), False, False),
        (DeliveryProgress(ANSWERED, "retrying"), False, False),
        (DeliveryProgress(ANSWERED, "failed"), True, True),
        (DeliveryProgress(ANSWERED, None), True, False),  # nobody is to be called: it is kept, to be asked for
        (DeliveryProgress("response_delivered_to_sender", "delivered"), True, False),
        (DeliveryProgress("done", None), True, False),
        (DeliveryProgress("failed", "pending"), False, True),  # its notice is still on the way
        (DeliveryProgress("failed", "delivered"), True, True),
        (DeliveryProgress("failed", None), True, True),
    ],
)
def test_one_delivery(delivery: DeliveryProgress, over: bool, failed: bool) -> None:
    assert is_over(delivery.status, [delivery]) is over
    assert has_failed(delivery.status, [delivery]) is failed


def test_a_message_is_over_when_all_its_deliveries_are() -> None:
    ended, waiting = DeliveryProgress("done", None), DeliveryProgress("arrived", None)
    assert is_over("done", [ended, ended])
    assert not is_over("arrived", [ended, waiting])
    assert has_failed("arrived", [waiting, DeliveryProgress("failed", None)])


def test_a_message_without_deliveries_is_under_way_until_it_was_routed_to_nobody() -> None:
    assert not is_over("arrived", [])
    assert is_over("failed", [])
    assert has_failed("failed", [])
