"""All routes of the API, as the resources declare them at their handlers."""

from collections.abc import Mapping
from typing import Final

from relay.api.answers import AnswersResource
from relay.api.audit import AuditResource
from relay.api.batch import BatchResource
from relay.api.catch_up import CatchUpResource
from relay.api.copies import CopiesResource
from relay.api.doctor import DoctorResource
from relay.api.erasures import ErasuresResource
from relay.api.event_types import EventTypesResource
from relay.api.failed import FailedResource
from relay.api.failed_groups import FailedGroupsResource
from relay.api.gaps import GapsResource
from relay.api.health import Health
from relay.api.history.resource import HistoryResource
from relay.api.inbound import InboundResource
from relay.api.incidents import IncidentsResource
from relay.api.keys import KeysResource
from relay.api.messages import MessageResource, MessagesResource
from relay.api.overview.resource import OverviewResource
from relay.api.pages import PagesResource
from relay.api.payloads import PayloadsResource
from relay.api.receiver_export import ReceiverExportResource
from relay.api.receiver_list import ReceiverListResource
from relay.api.receivers import ReceiversResource
from relay.api.reencryption import ReencryptionResource
from relay.api.registration import RegistrationResource, RotationResource
from relay.api.replay_one import ReplayResource
from relay.api.replays import ReplaysResource
from relay.api.route import Route, routes_of
from relay.api.sessions import SessionsResource
from relay.api.settings import SettingsResource
from relay.api.sources import SourcesResource
from relay.api.stats import StatsResource
from relay.api.tail.resource import TailResource
from relay.api.test_request import TrialResource
from relay.api.trial import TryResource
from relay.api.verification import VerificationResource
from relay.api.well_known import WellKnownResource

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
    FailedGroupsResource,
    ReplayResource,
    ReplaysResource,
    RegistrationResource,
    ReceiverListResource,
    RotationResource,
    TrialResource,
    TryResource,
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
    SettingsResource,
    AuditResource,
    DoctorResource,
    Health,
    WellKnownResource,
    PagesResource,
)
ROUTES: Final[Mapping[tuple[str, str], Route]] = {
    (route.method, route.path): route for resource in RESOURCES for route in routes_of(resource)
}
"""All routes by method and path template, in the order of the documentation."""
