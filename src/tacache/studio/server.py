"""Opening the studio to a browser: on this machine alone unless told otherwise, and guarded."""

import os
import socket
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tacache.errors import TACacheError
from tacache.storage.store import PlanStore
from tacache.studio.model import StudioModel
from tacache.work.addresses import host_name, is_local

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
LOCAL = "127.0.0.1"
UPLOADS = "2mb"  # one file
MAX_BODY_BYTES = 3 * 2**20  # one request, with what stands around its file
MAX_UPLOADED_BYTES = 256 * 2**20  # all files that are kept
MAX_WRONG_LOGINS, LOGIN_S = 5, 60.0  # of one client, within so many seconds
# Everything comes from the server itself; the page's own code needs inline styles and scripts.
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "worker-src 'self' blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# Set before Gradio is imported: it reads them once.
QUIET = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "GRADIO_SHARE": "False",
}


class Opening(NamedTuple):
    """Where the page is opened, and who may come in (a name and a password)."""

    host: str = LOCAL
    port: int = 7860
    auth: tuple[str, str] | None = None


def read_auth(text: str | None) -> tuple[str, str] | None:
    """Return a name and a password from USER:PASSWORD."""
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not (user and colon and password):
        raise TACacheError("--auth takes USER:PASSWORD, both of them not empty")
    return user, password


def check_opening(opening: Opening) -> None:
    """Refuse to open the page to other machines without a password."""
    if opening.auth is None and not is_local(opening.host):
        raise TACacheError(
            f"--host {opening.host} opens the page to others: give --auth USER:PASSWORD as well"
        )


def free_port(host: str) -> int:
    """Return a port of this address that nobody uses."""
    with socket.create_server((host, 0), family=_family(host)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class Guarded:
    """An application whose every answer has our headers.

    One that is not open to others answers only requests that name this machine as their host, so
    that no page of a browser reaches it under another name. No page of another origin is answered,
    that of another port included; what is sent is bounded, one request and all uploads together;
    and after some wrong passwords a client waits.
    """

    def __init__(self, app: Any, *, is_open: bool, uploads: Path | None = None) -> None:
        self._app, self._is_open, self._uploads = app, is_open, uploads
        self._wrong: dict[str, deque[float]] = {}  # when each client gave a wrong password

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Answer, with headers added to the start of the answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from starlette.responses import PlainTextResponse

        from tacache.serving.guards import read_body, replayed
        from tacache.serving.protocol import Refused

        try:
            self._check(scope)
            if scope.get("method") == "POST":
                body = await read_body(scope, receive, MAX_BODY_BYTES)
                receive = replayed(body, receive)
        except Refused as error:
            wait = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
            answer = PlainTextResponse(error.message, error.status, {**wait, "Connection": "close"})
            await answer(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                if _is_login(scope) and message["status"] == HTTPStatus.BAD_REQUEST:
                    self._wrong.setdefault(_client_of(scope), deque()).append(time.monotonic())
                known = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                kept = [header for header in added if header[0] not in known]
                message = {**message, "headers": [*message["headers"], *kept]}
            await send(message)

        await self._app(scope, receive, guarded)

    def _check(self, scope: Message) -> None:
        """Refuse who must not come in, or has sent too much."""
        from tacache.serving.protocol import Refused

        host, origin = (_header(scope, name) for name in ("host", "origin"))
        if not self._is_open and not is_local(host_name(host)):
            raise Refused("this page answers on localhost only", status=403)
        if origin and urlsplit(origin).netloc.lower() != host.lower():
            raise Refused("this page answers no pages of other origins", status=403)
        if _is_login(scope) and self._failures(_client_of(scope)) >= MAX_WRONG_LOGINS:
            raise Refused(
                f"{MAX_WRONG_LOGINS} wrong passwords: wait a minute", status=429, retry_after=60
            )
        if scope["path"].rstrip("/").endswith("/upload") and self._is_full():
            raise Refused(
                "there is no room for more files: old ones go after two hours", status=507
            )

    def _failures(self, client: str) -> int:
        """Return how often a client gave a wrong password within the last minute."""
        since = time.monotonic() - LOGIN_S
        self._wrong = {
            who: deque(when for when in times if when > since)
            for who, times in self._wrong.items()
            if times[-1] > since
        }
        return len(self._wrong.get(client, ()))

    def _is_full(self) -> bool:
        """Return whether all files that were sent take as much room as they may."""
        folder = self._uploads
        if folder is None or not folder.exists():
            return False
        sizes = (path.stat().st_size for path in folder.rglob("*.json") if path.is_file())
        return sum(sizes) > MAX_UPLOADED_BYTES


def _is_login(scope: Message) -> bool:
    return scope.get("method") == "POST" and scope["path"].rstrip("/").endswith("/login")


def _client_of(scope: Message) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _header(scope: Message, name: str) -> str:
    """Return a header of a request; empty where it has none."""
    values = (v for n, v in scope.get("headers", ()) if n.lower() == name.encode())
    return bytes(next(values, b"")).decode("latin-1")


@contextmanager
def serving(model: StudioModel, store: PlanStore, opening: Opening) -> Iterator[str]:
    """Serve the page for the length of a `with` block, whose value is its address."""
    check_opening(opening)
    opening = opening._replace(port=opening.port or free_port(opening.host))
    with tempfile.TemporaryDirectory(prefix="tacache-studio-") as folder:
        os.environ.update(QUIET, GRADIO_TEMP_DIR=str(Path(folder) / "gradio"))
        page = _page(model, store, Path(folder))
        try:
            _, address, _ = _launch(page, opening)
        except OSError as error:
            raise TACacheError(
                f"cannot open port {opening.port} on {opening.host}: choose another with --port"
            ) from error
        try:
            yield address
        finally:
            page.close(verbose=False)


def _page(model: StudioModel, store: PlanStore, folder: Path) -> Any:
    from tacache.studio.page import build
    from tacache.studio.sessions import Studio

    return build(Studio(model, store, folder))


def _launch(page: Any, opening: Opening) -> Any:
    from starlette.middleware import Middleware

    from tacache.studio.page import HEAD, SCRIPT, STYLE, theme

    uploads = Path(os.environ["GRADIO_TEMP_DIR"])
    guards = [Middleware(Guarded, is_open=opening.auth is not None, uploads=uploads)]
    return page.queue(default_concurrency_limit=8).launch(
        server_name=opening.host,
        server_port=opening.port,
        auth=opening.auth,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        ssr_mode=False,
        pwa=False,
        footer_links=[],
        max_file_size=UPLOADS,
        enable_monitoring=False,
        run_history=False,
        strict_cors=True,
        app_kwargs={"middleware": guards, "docs_url": None, "redoc_url": None},
        theme=theme(),
        css_paths=STYLE,
        head=HEAD,
        js=SCRIPT,
    )
