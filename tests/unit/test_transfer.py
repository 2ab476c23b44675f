"""What a record still needs when a relay is exported, judged by its rows."""

from typing import Literal

import pytest

from relay.domain.hop import Hop
from relay.domain.identity import DeliveryId
from relay.state.rows import Row, Stage
from relay.transfer.outgoing import Left, left_of_result


@pytest.mark.parametrize(
    ("outcome", "delivery", "callback", "left"),
    [
        ("answered", Stage.PUBLISHED, Stage.NONE, Left.ALL),
        ("answered", Stage.PUBLISHED, Stage.SENDING, Left.ALL),
        ("answered", Stage.PUBLISHED, Stage.RESULT, Left.NOT_PUBLISHED),
        ("answered", Stage.DONE, Stage.NONE, Left.OVER),
        ("answered", Stage.DONE, Stage.RESULT, Left.OVER),  # its process died before it deleted the callback's row
        ("failed", Stage.FAILED, Stage.NONE, Left.ALL),
        ("failed", Stage.FAILED, Stage.DONE, Left.OVER),
    ],
)
def test_a_result_is_over_when_the_row_of_its_delivery_proves_it(
    outcome: Literal["answered", "failed"], delivery: Stage, callback: Stage, left: Left
) -> None:
    hop = Hop(delivery=DeliveryId("ci", "github", "m-1"), outcome=outcome)
    assert left_of_result(hop, Row(stage=delivery), Row(stage=callback)) is left
