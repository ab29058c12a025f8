"""Opening the studio to a browser: on this machine alone unless told otherwise, and guarded."""

import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tacache.errors import TACacheError
from tacache.studio.model import StudioModel
from tacache.studio.shelf import Shelf
from tacache.work.addresses import host_name, is_local

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
LOCAL = "127.0.0.1"
UPLOADS = "2mb"
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
    """A name and a password from USER:PASSWORD."""
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
    """A port of this address that nobody uses."""
    with socket.create_server((host, 0), family=_family(host)) as found:
        port: int = found.getsockname()[1]
        return port


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class Guarded:
    """An application whose every answer has our headers.

    One that is not open to others answers only requests that name this machine as their host, so
    that no page of a browser reaches it under another name.
    """

    def __init__(self, app: Any, *, is_open: bool) -> None:
        self._app, self._is_open = app, is_open

    async def __call__(self, scope: Message, receive: Any, send: Send) -> None:
        """Answer, with headers added to the start of the answer."""
        if scope["type"] == "http" and not self._is_open and not is_local(_host_of(scope)):
            from starlette.responses import PlainTextResponse

            refusal = PlainTextResponse("this page answers on localhost only", 403)
            await refusal(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                kept = [one for one in added if one[0] not in known]
                message = {**message, "headers": [*message["headers"], *kept]}
            await send(message)

        await self._app(scope, receive, guarded)


def _host_of(scope: Message) -> str:
    """The name in the Host header of a request."""
    headers = {name.lower(): value for name, value in scope.get("headers", ())}
    return host_name(headers.get(b"host", b"").decode("latin-1"))


@contextmanager
def serving(model: StudioModel, shelf: Shelf, opening: Opening) -> Iterator[str]:
    """Serve the page for the length of a `with` block, whose value is its address."""
    check_opening(opening)
    opening = opening._replace(port=opening.port or free_port(opening.host))
    with tempfile.TemporaryDirectory(prefix="tacache-studio-") as folder:
        os.environ.update(QUIET, GRADIO_TEMP_DIR=str(Path(folder) / "gradio"))
        page = _page(model, shelf, Path(folder))
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


def _page(model: StudioModel, shelf: Shelf, folder: Path) -> Any:
    from tacache.studio.page import build
    from tacache.studio.sessions import Studio

    return build(Studio(model, shelf, folder))


def _launch(page: Any, opening: Opening) -> Any:
    from starlette.middleware import Middleware

    from tacache.studio.page.look import HEAD, SCRIPT, STYLE, theme

    guards = [Middleware(Guarded, is_open=opening.auth is not None)]
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
