"""The playground's files: one page with its style and its program, from memory, asking nobody else for anything."""

import hashlib
import re
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "json": "application/json",
    "svg": "image/svg+xml",
}

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


def page_routes() -> list[Route]:
    """A route for each file; the page itself is at the root."""
    folder = files("attendant.server.http") / "page"
    found = {one.name: one.read_bytes() for one in folder.iterdir()}
    return [
        Route("/" if name == "index.html" else f"/page/{name}", StaticFile(name, content).answer)
        for name, content in found.items()
    ]


class StaticFile:
    """A file that does not change while the server runs, and that a browser may keep."""

    def __init__(self, name: str, content: bytes) -> None:
        self._content = content
        self._media_type = TYPES[name.rpartition(".")[2]]
        self._headers = HEADERS | {"etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}

    async def answer(self, request: Request) -> Response:
        if self._is_among(",".join(request.headers.getlist("if-none-match"))):
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers, media_type=self._media_type)

    def _is_among(self, tags: str) -> bool:
        """Whether the header If-None-Match has this file's tag: a list, compared weakly (RFC 9110, 8.8.3.2), or `*`."""
        return tags.strip() == "*" or self._headers["etag"] in re.findall(r'"[^"]*"', tags)
