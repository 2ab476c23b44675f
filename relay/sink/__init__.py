"""A CI-like test receiver with fault knobs: for the demo, for tests, and as `relay sink`."""

from relay.sink.app import Sink
from relay.sink.arrival import CallbackSent, Poll, ReceivedPost
from relay.sink.behaviour import Behaviour, Mode

__all__ = ["Behaviour", "CallbackSent", "Mode", "Poll", "ReceivedPost", "Sink"]
