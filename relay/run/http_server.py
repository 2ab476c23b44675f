"""The process's HTTP servers: the API, or only the health routes; and a private one for other processes of its
`relay run`."""

from collections.abc import Callable

from relay.api.app import ApiContext, ApiServer
from relay.api.peers import GroupProcess, Peers
from relay.api.shared_port import Sharing, installation_id
from relay.config.answer_urls import AnswerUrls
from relay.config.own_address import own_url
from relay.config.plan import API, ProcessPlan
from relay.config.settings import Settings


class HttpServer:
    """`context`: builds the API's context; its argument: the peers that are asked too, or None."""

    def __init__(
        self,
        settings: Settings,
        plan: ProcessPlan,
        member: GroupProcess | None,
        context: Callable[[Peers | None], ApiContext],
    ) -> None:
        self._settings = settings
        self._plan = plan
        self._member = member
        self._context = context
        self._servers: list[ApiServer] = []
        self.url: str | None = None
        """The API's URL once it is open; None in a process without one."""

    @property
    def addresses(self) -> list[str]:
        """Where it listens, each as `host:port`."""
        return [address for server in self._servers for address in server.addresses]

    def answer_urls(self) -> AnswerUrls:
        """As known so far: without a public URL, those of this process."""
        return AnswerUrls(self._plan.answer_secrets, self._settings.public_url or self.url)

    async def open(self) -> None:
        """Opens the API or, in a process without that role, the health routes if a port is set for them. Raises
        UserError."""
        settings, siblings = self._settings, None
        if self._member is not None:
            siblings = Peers(self._member)
            await self._server(None, health_only=True).start_private(self._member.socket)
        if API in self._plan.roles:
            server = self._server(siblings, health_only=False)
            port = await server.start(settings.api_host, settings.api_port, self._sharing("api"))
            self.url = own_url(settings.api_host, port)
        elif settings.metrics_port is not None:
            server = self._server(siblings, health_only=True)
            await server.start(settings.api_host, settings.metrics_port, self._sharing("health"))

    def _sharing(self, serves: str) -> Sharing | None:
        """The processes that may share this one's port: those of its installation, with the same routes."""
        if self._plan.data_dir is not None:
            return None
        installation = installation_id(self._settings.kafka_bootstrap_servers.split(","), self._settings.topic_prefix)
        return Sharing(f"{serves}:{installation}", any_process=self._settings.api_shared_port == "any")

    def _server(self, siblings: Peers | None, *, health_only: bool) -> ApiServer:
        server = ApiServer(self._context(siblings), health_only=health_only)
        self._servers.append(server)
        return server

    async def close(self) -> None:
        for server in reversed(self._servers):
            await server.stop()
