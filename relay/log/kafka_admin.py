"""Topics, committed offsets and lag on Kafka."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import batched  # noqa: F401
