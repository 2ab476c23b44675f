"""The Python SDK: a typed client of the relay's HTTP API, for asyncio (`AsyncRelay`) and without (`Relay`).

from relay.client import Relay

with Relay("https://relay.example", key="...") as relay:
    answer = relay.send_and_wait("github", {"ref": "refs/heads/main"}, receiver="ci")
    print(answer.json())
"""

from relay.client.errors import ApiError as ApiError
from relay.client.errors import ClientError as ClientError
from relay.client.errors import DeliveryFailed as DeliveryFailed
from relay.client.errors import InvalidArgument as InvalidArgument
from relay.client.errors import NotARelay as NotARelay
from relay.client.errors import OtherVersion as OtherVersion
from relay.client.errors import RelayUnreachable as RelayUnreachable
from relay.client.errors import WaitTimeout as WaitTimeout
from relay.client.http import Answer as Answer
from relay.client.relay import AsyncRelay as AsyncRelay
from relay.client.relay import Relay as Relay
