"""The record on `to_sender` that carries a receiver's answer."""

from msgspec import structs

from relay.domain.hop import Hop, encode_hop
from relay.domain.topics import Topics
from relay.log.port import NewRecord
from relay.state.port import Result


def answer_record(topics: Topics, hop: Hop, result: Result, attempts: int) -> NewRecord:
    """The answer in `result`, for the sender of the delivery in `hop`: an empty one where there was none."""
    answer = structs.replace(
        hop,
        content_type=result.content_type,
        attempt=attempts,
        outcome="answered" if result.outcome == "answered" else "delivered",
        answer_status=result.status,
        answer_truncated=result.truncated,
        status_url=None,
        ask_after_s=None,
    )
    return NewRecord(topics.to_sender, hop.delivery.source_id.encode(), result.body, encode_hop(answer))
