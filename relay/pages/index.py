"""All pages there are, in the order of the navigation. A new one is added here."""

from relay.pages.actions import Actions
from relay.pages.doctor import Doctor
from relay.pages.failed import FailedPage
from relay.pages.message import MessageDetailPage
from relay.pages.messages import Messages
from relay.pages.overview import Overview
from relay.pages.page import Page
from relay.pages.portal import Portal
from relay.pages.receiver import ReceiverDetailPage
from relay.pages.receivers import ReceiversPage
from relay.pages.replays import ReplaysPage
from relay.pages.session import SignIn
from relay.pages.sources import SourcesPage
from relay.pages.system import System
from relay.pages.try_it import Trying
from relay.pages.workers import WorkersPage


def pages() -> tuple[Page, ...]:
    """One of each."""
    return (
        Overview(),
        *(Messages(), MessageDetailPage()),
        *(ReceiversPage(), ReceiverDetailPage(), SourcesPage()),
        *(FailedPage(), ReplaysPage()),
        *(WorkersPage(), Trying(), System(), Doctor()),
        *(Portal(), SignIn(), Actions()),
    )
