"""A CI-like test receiver with fault knobs: for the demo, for tests, and as `relay sink`."""

from relay.sink.app import Sink
from relay.sink.arrival import Arrival, CallbackSent, Poll
from relay.sink.behaviour import Behaviour, Mode

__all__ = ["Arrival", "Behaviour", "CallbackSent", "Mode", "Poll", "Sink"]
