"""The playground's files: one page with its style and its program, from memory, asking nobody else for anything."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

HEADERS = {
    # What the page loads and asks comes from this server; nobody frames it.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def page_routes(middleware: Sequence[Middleware]) -> list[Route]:
    """A route for each file; the page itself is at the root."""
    folder = files("attendant.server.web") / "page"
    found = {one.name: one.read_bytes() for one in folder.iterdir()}
    return [
        Route("/" if name == "index.html" else f"/page/{name}", _File(name, content).answer, middleware=middleware)
        for name, content in found.items()
    ]


class _File:
    def __init__(self, name: str, content: bytes) -> None:
        self._content = content
        self._media_type = TYPES[name.rpartition(".")[2]]
        self._headers = HEADERS | {"etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}

    async def answer(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers, media_type=self._media_type)
