"""All pages there are, in the order of the navigation. A new one is added here."""

from relay.pages.actions import Actions
from relay.pages.failed import Failed
from relay.pages.message import MessagePage
from relay.pages.messages import Messages
from relay.pages.page import Page
from relay.pages.replays import Replays
from relay.pages.session import SignIn
from relay.pages.system import System


def pages() -> tuple[Page, ...]:
    """One of each."""
    return (Messages(), MessagePage(), Failed(), Replays(), System(), SignIn(), Actions())
