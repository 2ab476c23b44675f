"""The process's API: its context, the services behind requests for changes, and its HTTP servers."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial

from relay.api.batch import largest_body
from relay.api.context import ApiContext
from relay.api.origin_check import WebRules
from relay.api.peers import GroupProcess, Peers
from relay.api.registrar import Registrar
from relay.api.server import ApiServer
from relay.api.shared_port import Sharing, installation_id
from relay.api.shares import shares_of_live_pages
from relay.config.encryption import KeyRing
from relay.config.limits import limits_of
from relay.config.own_address import (
    AnswerUrls,
    answer_keys,
    launch_secret,
    may_be_open,
    own_names,
    own_url,
    session_secrets,
)
from relay.config.plan import API, ProcessPlan
from relay.config.references import usable_variables
from relay.config.setting_layers import origins_of
from relay.config.settings import Settings
from relay.control.keys import KeyService
from relay.control.patch import Rules
from relay.control.projections import Catalogue, ErasureService
from relay.control.records import ControlWriter
from relay.delivery.egress import USER_AGENT, blocked_endpoint
from relay.domain.signing import generate_secret
from relay.history.port import History
from relay.pages.brand import Brand
from relay.pages.portal_strings import read_strings
from relay.pages.web import create_pages
from relay.replay.replay_service import ReplayService
from relay.run.check_contexts import examine_process
from relay.run.composition import ProcessContext
from relay.run.delivery_part import DeliveryPart
from relay.run.telemetry_part import TelemetryPart
from relay.telemetry.logging import get_logger

_log = get_logger("relay.process")

PartReports = Callable[[], Mapping[str, str | None]]


@dataclass(eq=False, repr=False)
class ApiPart:
    """The part of a process that serves the API and the pages. `variables`: all variables that entries of receivers may
    refer to; `ring`: opens their secrets. `member`: this process among several that were started together. `ready`,
    `warnings`: see ApiContext."""

    context: ProcessContext
    telemetry: TelemetryPart
    delivery: DeliveryPart
    history: History | None
    variables: Mapping[str, str]
    ring: KeyRing
    member: GroupProcess | None
    _: KW_ONLY
    ready: PartReports
    warnings: PartReports

    def __post_init__(self) -> None:
        context, registry = self.context, self.context.registry
        launch = launch_secret(None if self.member is None else self.member.directory)
        self._session_secrets = session_secrets(context.settings, context.plan.answer_secrets, launch)
        writer = ControlWriter(context.log, context.topics.receiver_config, registry.reach)
        self._keys = KeyService(writer, registry.keys)
        self._catalogue = Catalogue(writer, registry.event_types)
        self._erasures = ErasureService(writer, registry.erasures, self.history)
        self.replay_service = self._new_replay_service()
        """Plans replays and discards."""

    def _new_replay_service(self) -> ReplayService:
        context, registry = self.context, self.context.registry
        return ReplayService(
            *context.stores,
            registry,
            registry,
            registry.jobs,
            context.clock,
            lanes=self.delivery.lanes.own,
            known_to=registry.reach,
            max_payload_bytes=context.settings.max_payload_bytes,
            dedup_window_s=context.settings.dedup_window,
            erasures=registry.erasures,
        )

    def api_context(self, peers: Peers | None) -> ApiContext:
        """The API's context; with `peers`, requests about the whole group also ask these."""
        context, settings, plan = self.context, self.context.settings, self.context.plan
        pages = partial(
            create_pages,
            now=context.clock.time,
            shares=shares_of_live_pages(self.telemetry.meter),
            portal_origins=settings.portal_origins,
            brand=Brand(settings.portal_name, settings.portal_colour, settings.portal_theme, settings.portal_logo),
            strings=read_strings(settings.portal_strings),
        )
        return ApiContext(
            log=context.log,
            state=context.state,
            topics=context.topics,
            directory=context.registry,
            metrics_text=self.telemetry.metrics.render,
            ready=self.ready,
            api_key=settings.api_key.get_secret_value() if settings.api_key else None,
            metrics_key=settings.metrics_key.get_secret_value() if settings.metrics_key else None,
            answer_secrets=plan.answer_secrets,
            max_payload_bytes=settings.max_payload_bytes,
            answer_body_cap=settings.answer_body_cap,
            clock=context.clock,
            new_id=lambda: secrets.token_hex(16),
            meter=self.telemetry.meter,
            peers=peers,
            registrar=self._registrar(),
            verify=self.delivery.verifier.try_now,
            blocked_endpoint=partial(blocked_endpoint, settings),
            history=self.history,
            dedup_window_s=settings.dedup_window,
            warnings=self.warnings,
            lanes=self.delivery.lanes.own,
            replays=self.replay_service,
            keys=self._keys,
            catalogue=self._catalogue,
            erasures=self._erasures,
            ring=self.ring,
            transport=self.delivery.transport,
            user_agent=USER_AGENT,
            tracing=self.telemetry.traces,
            own_key=plan.own_key,
            answer_keys=answer_keys(settings),
            session_secrets=self._session_secrets,
            pages=pages if settings.pages else None,
            examine=partial(examine_process, context, self.history),
            web=WebRules(own_names(settings), settings.public_url),
            limits=limits_of(settings, largest_body(settings.max_payload_bytes)),
            key_quota=settings.api_key_quota,
            source_quota=settings.source_quota,
            settings=origins_of(settings),
            keeps_bodies=settings.history_bodies > 0,
            public_url=settings.public_url,
            strict_json=settings.strict_json,
            may_be_open=may_be_open(settings),
            owner_receivers=settings.api_owner_receivers,
            adhoc_endpoints=settings.adhoc_endpoints,
        )

    def _registrar(self) -> Registrar:
        """Registers receivers and sources over the API, with its rules for secrets and verification."""
        context, settings = self.context, self.context.settings
        allowed = settings.api_secrets_from
        usable = usable_variables(self.variables, allowed) if allowed else ()
        rules = Rules(self.variables, usable, self.ring, settings.api_verification)
        return Registrar(
            *context.stores,
            context.registry,
            context.clock,
            rules,
            lambda: generate_secret(secrets.token_bytes),
            owner=context.lease_owner,
        )


class HttpServer:
    """Serves the API, or only the health routes; and these on a private socket, for others of the same `relay run`."""

    def __init__(self, settings: Settings, plan: ProcessPlan, member: GroupProcess | None) -> None:
        self._settings = settings
        self._plan = plan
        self._member = member
        self._servers: list[ApiServer] = []
        self.url: str | None = None
        """The API's URL once it is open; None in a process without one."""

    @property
    def addresses(self) -> list[str]:
        """Addresses that it listens on, each as `host:port`."""
        return [address for server in self._servers for address in server.addresses]

    def answer_urls(self) -> AnswerUrls:
        """The answer URLs as known so far: without a public URL, those of this process."""
        return AnswerUrls(self._plan.answer_secrets, self._settings.public_url or self.url)

    async def open(self, context_of: Callable[[Peers | None], ApiContext]) -> None:
        """Opens the API or, in a process without that role, the health routes if a port is set for them. `context_of`:
        builds the API's context; its argument: the peers that are asked too, or None. Raises UserError."""
        settings, peers = self._settings, None
        if self._member is not None:
            peers = Peers(self._member)
            await self._open_private(context_of(None), self._member)
        if API in self._plan.roles:
            server = self._server(context_of(peers), health_only=False)
            port = await server.start(settings.api_host, settings.api_port, self._sharing("api"))
            self.url = own_url(settings.api_host, port)
        elif settings.metrics_port is not None:
            server = self._server(context_of(peers), health_only=True)
            await server.start(settings.api_host, settings.metrics_port, self._sharing("health"))

    async def _open_private(self, context: ApiContext, member: GroupProcess) -> None:
        try:
            await self._server(context, health_only=True).start_private(member.socket)
        except FileNotFoundError:  # a cleaner of temporary files removed it; messages can do without
            _log.warning("group_directory_gone", directory=str(member.directory))

    def _sharing(self, serves: str) -> Sharing | None:
        """The processes that may share this one's port: those of its installation, with the same routes."""
        if self._plan.data_dir is not None:
            return None
        installation = installation_id(self._settings.kafka_bootstrap_servers.split(","), self._settings.topic_prefix)
        return Sharing(f"{serves}:{installation}", any_process=self._settings.api_shared_port == "any")

    def _server(self, context: ApiContext, *, health_only: bool) -> ApiServer:
        server = ApiServer(context, health_only=health_only)
        self._servers.append(server)
        return server

    async def close(self) -> None:
        for server in reversed(self._servers):
            await server.stop()
