"""All routes of the API, as the resources declare them at their handlers, and the application that serves them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from aiohttp import web

from relay.api.answers import AnswersResource
from relay.api.audit import AuditResource, AuditTrail, keep_audit
from relay.api.authentication import Callers, require_access, require_no_key
from relay.api.batch import BatchResource
from relay.api.bounds import limit_requests, refuse_excess, refuse_odd_framing
from relay.api.connection import FIXED_HEADERS
from relay.api.context import ApiContext
from relay.api.copies import CopiesResource
from relay.api.erasures import ErasuresResource
from relay.api.event_types import EventTypesResource
from relay.api.failed import FailedResource
from relay.api.health import DoctorResource, Health, count_responses, require_start
from relay.api.history.payload import PayloadsResource
from relay.api.history.resource import HistoryResource
from relay.api.inbound import InboundResource
from relay.api.incidents import IncidentList, IncidentsResource
from relay.api.intake import Intake
from relay.api.keys import KeysResource, KeyUse
from relay.api.landing import PEOPLE
from relay.api.messages import MessageResource, MessagesResource
from relay.api.origin_check import Refusals, refuse_foreign
from relay.api.overview.resource import OverviewResource
from relay.api.overview.snapshot import Looker
from relay.api.pages import PagesResource
from relay.api.problem_details import middleware_of, problem_details
from relay.api.quotas import Quotas, quota_headers
from relay.api.receiver_export import ReceiverExportResource
from relay.api.receiver_list import ReceiverListResource
from relay.api.receiver_numbers import CatchUpResource, GapsResource
from relay.api.receivers import ReceiversResource, VerificationResource
from relay.api.reencryption import ReencryptionResource
from relay.api.registration import RegistrationResource
from relay.api.replay_one import ReplayResource
from relay.api.replays import ReplaysResource
from relay.api.route import Route, add_routes, routes_of
from relay.api.sessions import SessionsResource
from relay.api.sources import SourcesResource
from relay.api.stats import StatsResource
from relay.api.status import StatusReader
from relay.api.tail.resource import TailResource
from relay.api.tail.tail import Tail
from relay.api.trial import TrialResource
from relay.api.waiters import Waiters
from relay.api.well_known import WellKnownResource
from relay.log.prompt import PromptLog

RESOURCES: Final[tuple[type, ...]] = (
    MessagesResource,
    BatchResource,
    MessageResource,
    CopiesResource,
    InboundResource,
    AnswersResource,
    PayloadsResource,
    HistoryResource,
    ReceiverExportResource,
    CatchUpResource,
    ErasuresResource,
    FailedResource,
    ReplayResource,
    ReplaysResource,
    RegistrationResource,
    ReceiverListResource,
    TrialResource,
    VerificationResource,
    StatsResource,
    GapsResource,
    ReceiversResource,
    SourcesResource,
    ReencryptionResource,
    EventTypesResource,
    KeysResource,
    TailResource,
    SessionsResource,
    OverviewResource,
    IncidentsResource,
    AuditResource,
    DoctorResource,
    Health,
    WellKnownResource,
    PagesResource,
)
"""One that `create_app` does not make itself takes the context alone."""
ROUTES: Final[Mapping[tuple[str, str], Route]] = {
    (route.method, route.path): route for resource in RESOURCES for route in routes_of(resource)
}
"""All routes by method and path template, in the order of the documentation."""


def create_app(
    context: ApiContext, *, health_only: bool = False, private: bool = False, pages: web.Application | None = None
) -> web.Application:
    """All routes. Callers have keys with scopes, signed webhooks, or answer URLs; scopes are checked in `access`.

    `health_only`: just the monitoring routes, for processes without the API. `private`: likewise, where only our own
    processes can reach it. `pages`: the web pages, mounted under `/ui`.
    """
    context = replace(context, log=PromptLog(context.log, context.clock))
    refusals, trail = Refusals(context.clock), AuditTrail(context.log, context.topics.audit)
    uses = KeyUse(context.state, context.clock)
    callers = Callers(context, refusals, uses)
    app = web.Application(
        middlewares=[
            limit_requests(context.limits),
            count_responses(context.meter),
            problem_details,
            keep_audit(context, trail),
            middleware_of(
                refuse_excess,
                refuse_odd_framing,
                refuse_foreign(context.web, refusals),
                require_no_key if private else require_access(context, callers),
                require_start(context),
            ),
        ]
    )
    app.on_response_prepare.append(_set_fixed_headers)
    if health_only or private:
        add_routes(app.router, Health(context, None if private else callers))
        return app
    reader = StatusReader(context)
    waiters = Waiters(reader, context.state, context.limits)
    tail = Tail(context.log, context.topics, context.directory, context.limits, context.meter)
    app.on_startup.append(waiters.start)
    app.on_shutdown.extend((waiters.close, tail.close))
    app.on_startup.extend((trail.start, uses.start))
    app.on_cleanup.extend((trail.close, uses.close))  # when the last request is over
    made = (
        *_messages(context, reader, waiters, refusals),
        *_operation(context, uses, callers),
        *_exports(context, reader),
        TailResource(context, tail),
        Health(context, callers),
        PagesResource(ROUTES.values(), context.topics, for_people=pages is not None),
    )
    by_type = {type(resource): resource for resource in made}
    for resource in RESOURCES:
        add_routes(app.router, by_type.get(resource) or resource(context))
    if pages is not None:
        app.add_subapp(PEOPLE, pages)
    return app


def _messages(context: ApiContext, reader: StatusReader, waiters: Waiters, refusals: Refusals) -> list[object]:
    """Their ways in, and what became of them."""
    intake, quotas, replay = Intake(context), Quotas(context, refusals), ReplayResource(context, reader, waiters)
    messages = MessagesResource(context, reader, intake, quotas, waiters)
    return [
        messages,
        InboundResource(context, messages, intake, refusals, quotas, replay),
        BatchResource(context, intake, quotas),
        MessageResource(reader, waiters, context.limits.wait_s),
        CopiesResource(context, reader, messages, quotas),
        HistoryResource(context, reader),
        AnswersResource(context, reader),
        PayloadsResource(context, reader),
        ErasuresResource(context, reader),
        replay,
    ]


def _operation(context: ApiContext, uses: KeyUse, callers: Callers) -> list[object]:
    """Resources for operators, keys and sessions."""
    looker, jobs = Looker(context), ReplaysResource(context)
    incidents = IncidentList(context, looker)
    return [
        FailedResource(context, looker.reader),
        jobs,
        GapsResource(context, jobs),
        KeysResource(context, uses),
        SessionsResource(context, callers),
        OverviewResource(context, looker, incidents),
        IncidentsResource(context, incidents),
    ]


def _exports(context: ApiContext, reader: StatusReader) -> list[object]:
    export = ReceiverExportResource(context, reader)
    return [export, CatchUpResource(context, reader, export)]


async def _set_fixed_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(FIXED_HEADERS)
    if request.path.startswith("/v1/"):
        response.headers["Cache-Control"] = "no-store"
        response.headers.update(quota_headers(request))
