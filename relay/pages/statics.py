"""Scripts, style and pictures: in memory, packed once, under an address that has their hash, so browsers keep them."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

FILES: Final = Path(__file__).parent / "static"
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_KEPT: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _Static:
    digest: str
    plain: bytes
    packed: bytes
    content_type: str


class Statics:
    """Those of `folder`, by their path in it."""

    def __init__(self, folder: Path = FILES) -> None:
        self._files = {
            file.relative_to(folder).as_posix(): _read(file)
            for file in sorted(folder.rglob("*"))
            if file.suffix in _TYPES
        }

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/static/{digest}/{name:.+}", self.get)

    def url(self, name: str) -> str:
        """The address of a file. Raises KeyError."""
        return f"/ui/static/{self._files[name].digest}/{name}"

    async def get(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["name"])
        if found is None or found.digest != request.match_info["digest"]:
            raise web.HTTPNotFound
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        kind = f"{found.content_type}; charset=utf-8"
        headers = {"Cache-Control": _KEPT, "Vary": "Accept-Encoding", "Content-Type": kind}
        if packed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=found.packed if packed else found.plain, headers=headers)


def _read(file: Path) -> _Static:
    plain = file.read_bytes()
    return _Static(hashlib.sha256(plain).hexdigest()[:16], plain, gzip.compress(plain, mtime=0), _TYPES[file.suffix])
