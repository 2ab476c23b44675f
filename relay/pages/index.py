"""All pages there are, in the order of the navigation. A new one is added here."""

from relay.pages.actions import Actions
from relay.pages.doctor import Doctor
from relay.pages.failed import Failed
from relay.pages.message import MessagePage
from relay.pages.messages import Messages
from relay.pages.overview import Overview
from relay.pages.page import Page
from relay.pages.portal import Portal
from relay.pages.receiver import Receiver
from relay.pages.receivers import Receivers
from relay.pages.replays import Replays
from relay.pages.session import SignIn
from relay.pages.sources import Sources
from relay.pages.system import System
from relay.pages.try_it import Trying
from relay.pages.workers import Working


def pages() -> tuple[Page, ...]:
    """One of each."""
    return (
        Overview(),
        *(Messages(), MessagePage()),
        *(Receivers(), Receiver(), Sources()),
        *(Failed(), Replays()),
        *(Working(), Trying(), System(), Doctor()),
        *(Portal(), SignIn(), Actions()),
    )
