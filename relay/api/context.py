"""The HTTP API's dependencies on its process: ports, names, limits and time."""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp.web import Application

from relay.api.origin_check import WebRules
from relay.api.peers import Peers
from relay.api.problems import no_receiver
from relay.api.registrar import Registrar
from relay.clock import Clock
from relay.config.encryption import NO_KEYS, KeyRing
from relay.config.limits import ApiLimits
from relay.config.receiver_entry import ReceiverEntry
from relay.config.setting_layers import Origin
from relay.control.keys import KeyService
from relay.control.projections import Catalogue, ErasureService
from relay.control.registry import Registry
from relay.delivery.port import Transport
from relay.domain.diagnosis import Diagnosis
from relay.domain.directory import Directory
from relay.domain.identity import MessageId
from relay.domain.receiver import Quota, Receiver
from relay.domain.topics import DAY_S, Topics
from relay.domain.verification import HandshakeResult
from relay.history.port import HistoryReader
from relay.log.port import Log
from relay.replay.replay_service import ReplayService
from relay.state.port import State
from relay.state.read_model import LastResponse
from workers.dependencies import Meter, Tracing


@dataclass(frozen=True, slots=True)
class ApiContext:
    """All that the handlers of the API use. `ready`: name of each part -> None while it works, else the fault.
    `warnings`: the same for problems that need attention although the relay works. `metrics_text`: the exposition
    format.

    `api_key` None: there are no keys but those of `keys`, and `own_key`, with which this process calls itself. As long
    as `keys` never had one, either, every client may call, if `may_be_open`. `answer_secrets` empty: answer URLs
    are off. `answer_body_cap` and `max_payload_bytes`: bytes of a body at most. `new_id`: a message id for senders that
    give none. `peers`: other processes for which this one answers monitoring, too. `web`: which hosts and
    origins are its own. `key_quota`: of messages that come with one key; `source_quota`: of those of a source that has
    no other.
    """

    log: Log
    state: State
    topics: Topics
    directory: Directory
    metrics_text: Callable[[], bytes]
    ready: Callable[[], Mapping[str, str | None]]
    api_key: str | None = field(repr=False)
    answer_secrets: Sequence[bytes] = field(repr=False)
    max_payload_bytes: int
    answer_body_cap: int
    clock: Clock
    new_id: Callable[[], str]
    registrar: Registrar
    verify: Callable[[Receiver], Awaitable[HandshakeResult | None]]
    """Makes a handshake with a receiver, and returns its result; None if one is in progress."""
    replays: ReplayService
    keys: KeyService
    catalogue: Catalogue
    erasures: ErasureService
    transport: Transport
    """The one of deliveries."""
    examine: Callable[[str | None], Awaitable[Diagnosis]]
    """Runs the checks of all dependencies of this process, or of one receiver."""
    meter: Meter = field(default_factory=Meter)
    peers: Peers | None = None
    web: WebRules = field(default_factory=WebRules)
    limits: ApiLimits = field(default_factory=ApiLimits)
    key_quota: Quota | None = None
    source_quota: Quota | None = None
    warnings: Callable[[], Mapping[str, str | None]] = dict
    lanes: Callable[[], Iterable[str]] = tuple
    """Receivers whose own topics have to be read."""
    blocked_endpoint: Callable[[ReceiverEntry], str | None] = lambda _: None
    """Why nothing would be sent to the URL of a receiver, if that is known."""
    user_agent: str = "relay"
    tracing: Tracing | None = None
    """None without tracing; then senders' trace contexts are only passed on."""
    history: HistoryReader | None = None
    """The history; None if none is configured."""
    settings: Sequence[Origin] = ()
    """The settings in effect, with secrets masked."""
    keeps_bodies: bool = True
    """Whether the history keeps bodies and headers, so that these can be searched."""
    answer_keys: Sequence[str] = field(default=(), repr=False)
    """Private keys that decrypt answers."""
    own_key: str | None = field(default=None, repr=False)
    metrics_key: str | None = field(default=None, repr=False)
    """One that may read `/metrics`, and no more."""
    strict_json: bool = False
    """Refuse payloads that are not the JSON that their content type says."""
    may_be_open: bool = True
    pages: Callable[[Path], Application] | None = None
    """Makes the pages for people, given the socket where they reach this API; None: there are none."""
    session_secrets: Sequence[bytes] = field(default_factory=lambda: (secrets.token_bytes(32),), repr=False)
    """Secrets of sessions and portal links. The first one signs, and each verifies."""
    public_url: str | None = None
    """The URL at which other machines reach the API, without a trailing slash."""
    adhoc_endpoints: Sequence[str] = ()
    """Origins of endpoints that messages may bring along."""
    ring: KeyRing = NO_KEYS
    """Encrypts the secrets that messages bring along."""
    dedup_window_s: float = 7 * DAY_S
    """For how long a message's row is kept."""
    owner_receivers: int = 1_000
    """Maximum number of receivers of an owner that registers them with its own key."""

    @property
    def registry(self) -> Registry:
        """What the registrar knows."""
        return self.registrar.registry

    def is_erased(self, message: MessageId, receivers: Iterable[str], received_at: float) -> bool:
        """As `Erasures.has`."""
        return self.erasures.known.has(message, receivers, received_at)

    async def last_response(self, name: str) -> LastResponse | None:
        """The last response of a receiver. None if there was none, or it was erased with what the receiver got, because
        it may repeat a payload."""
        found = await self.state.last_response(f"r:{name}")
        is_erased = found is not None and self.is_erased(MessageId("", ""), (name,), found.at)  # of whatever message
        return None if is_erased else found

    def has_receiver(self, name: str) -> bool:
        """Whether there is an entry of that name, which may be unusable here."""
        return self.directory.receiver(name) is not None or self.directory.refusal(name) is not None

    def check_receiver(self, name: str) -> None:
        """Raises a Problem if there is no entry of that name."""
        if not self.has_receiver(name):
            raise no_receiver(name)
