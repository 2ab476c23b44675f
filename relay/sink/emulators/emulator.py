"""The HTTP server around an emulated CI: authentication, faults, records, and control from outside."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import monotonic
from typing import Any, ClassVar, Final, Unpack

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from relay.domain.json_pointer import NOT_JSON
from relay.sink.arrival import Poll, ReceivedPost, arrival_of
from relay.sink.builds import Build, Builds, CiBehaviour, CiKnobs
from relay.sink.server import ROUTES, ReceivingServer, add_control

TOKEN: Final = "emulator-token"  # noqa: S105 - it protects nothing
"""The credential that an emulator accepts, if no other is given."""
_LARGEST_BODY: Final = 26 * 1024 * 1024


class CiError(Exception):
    """A request is refused. `detail`: for the error body in the CI's own form; None for its usual text."""

    def __init__(self, status: int, detail: object = None) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


class Ci:
    """An emulated CI: its routes, and how it refuses requests. `post_path`: of the request that starts a build.
    `credential`: name and value of the header that authenticates a request."""

    post_path: ClassVar[str]
    header: ClassVar[tuple[str, str]] = ("Authorization", "Bearer ")
    """Name of that header, and what its value has before the token."""

    def __init__(self, builds: Builds, token: str) -> None:
        name, scheme = self.header
        self.credential = (name, scheme + token)
        self._builds = builds

    @abstractmethod
    def routes(self) -> Iterable[web.RouteDef]: ...

    def authenticate(self, request: web.Request) -> None:
        """Raises CiError."""
        name, value = self.credential
        if request.headers.get(name) != value:
            raise CiError(401)

    @abstractmethod
    def refusal(self, status: int, detail: object) -> web.Response:
        """The error response in its own form."""

    def numbered(self, number: str, detail: object = None) -> Build:
        """The build with this number. Raises CiError, with this detail."""
        build = self._builds.find(number)
        if build is None or str(build.number) != number:
            raise CiError(404, detail)
        return build


class Emulator(ReceivingServer):
    """A CI emulator. After `start`, `url` accepts POSTs that start builds; `received` and `polls` record the requests.

    `token`: the credential that it accepts. `on_arrival` is called for each POST. The API of the CI is `ci`, and its
    builds are in `builds`.
    """

    def __init__(
        self,
        ci: Callable[[Builds, str], Ci],
        *,
        token: str = TOKEN,
        on_arrival: Callable[[ReceivedPost], None] | None = None,
        **knobs: Unpack[CiKnobs],
    ) -> None:
        super().__init__(on_arrival)
        self.builds = Builds(CiBehaviour(**knobs))
        self.ci = ci(self.builds, token)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST_BODY, middlewares=[self._middleware])
        app.router.add_routes(self.ci.routes())
        add_control(app, self)
        return app

    @property
    def url(self) -> str:
        """The `post_endpoint`."""
        return self.origin + self.ci.post_path

    @property
    def behaviour(self) -> CiBehaviour:
        return self.builds.behaviour

    def become(self, **knobs: Unpack[CiKnobs]) -> None:
        """Change the behaviour of new builds and of all requests from now on; other knobs stay."""
        self.behave(replace(self.behaviour, **knobs))

    def behave(self, behaviour: CiBehaviour) -> None:
        self.builds.behaviour = behaviour

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in ROUTES:
            return await handler(request)
        body = await request.read()
        try:
            self.ci.authenticate(request)
            response = await self._handled(request, handler)
        except CiError as refused:
            response = self.ci.refusal(refused.status, refused.detail)
            if self.behaviour.retry_after is not None:
                response.headers["Retry-After"] = str(self.behaviour.retry_after)
        except web.HTTPException as error:  # no such route
            response = self.ci.refusal(error.status, None)
        self._record(request, body, response.status)
        return response

    async def _handled(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        behaviour = self.behaviour
        fault = behaviour.fail_status if request.method == "POST" else behaviour.poll_status
        if fault is not None and not (request.method == "POST" and behaviour.fail_after_start):
            raise CiError(fault)
        response = await handler(request)
        if fault is not None:
            raise CiError(fault)
        return response

    def _record(self, request: web.Request, body: bytes, status: int) -> None:
        if request.method == "GET":
            self.note(self.polls, Poll(request.path_qs, status, monotonic()))
            return
        self.arrived(arrival_of(request, body, "later" if status < 300 else "reject", status, None))


async def json_object(request: web.Request, fault: CiError) -> dict[str, Any]:
    """The body, a JSON object sent as such. Raises `fault` if it is something else."""
    if request.content_type != "application/json":
        raise fault
    try:
        return msgspec.json.decode(await request.read(), type=dict[str, Any])
    except NOT_JSON:
        raise fault from None
