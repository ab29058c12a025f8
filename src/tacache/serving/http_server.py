"""Running the HTTP application in this process until it is told to stop.

What a client sends is bounded before anything of it is looked at: the bytes of its headers, and
the time it may take to send them.
"""

import asyncio
import signal
import socket
from collections.abc import Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tacache.errors import HostError
from tacache.work.addresses import is_local

MAX_HEADER_BYTES = 64 * 1024
MAX_HEADER_S = 15.0  # from a connection's beginning, or the answer before, to a request's headers
MAX_UNREAD_S = 30.0  # for a client to take more of an answer than the buffers hold
FLUSH_S = 3  # for answers to reach their clients, once all of them are known


def check_address(host: str, keys: Sequence[str]) -> None:
    """Refuse to be reached from other machines without keys."""
    if not keys and not is_local(host):
        raise HostError(
            f"at --host {host} other machines can reach the server: give an --api-key, or set "
            "TACACHE_API_KEYS"
        )


def bound(host: str, port: int) -> socket.socket:
    """Return a socket at this address, before a model is loaded for it; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        reason = error.strerror or str(error)
        raise HostError(f"cannot listen at {host}, port {port}: {reason}") from error
    return listening


def opened(listening: socket.socket) -> str:
    """Let clients connect, and return the address for them: who comes early waits a moment."""
    listening.listen(2048)
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class TimedProtocol(H11Protocol):
    """One connection; it ends where a client sends its headers or takes its answers too slowly.

    httptools, which uvicorn would choose, has no limit on headers. Requests that come before the
    answer to the one before get none: each that is answered would make room for a whole buffer.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Read on; headers that are whole end the wait for them."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            _stopped(self._header_timer)
        if self.cycle is not None and self.conn.their_state is h11.DONE:
            self.cycle.keep_alive &= not self.conn.trailing_data[0]

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to take the last answer."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._wait_for_reader()
        elif self.conn.their_state is h11.IDLE:
            self._wait_for_headers()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read, as the buffers are full."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Wait no more for the client to read."""
        _stopped(self._unread_timer)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        _stopped(self._header_timer)
        super().connection_lost(exc)
        _stopped(self._unread_timer)

    def _wait_for_headers(self) -> None:
        _stopped(self._header_timer)
        self._header_timer = self.loop.call_later(MAX_HEADER_S, self._close)

    def _wait_for_reader(self) -> None:
        _stopped(self._unread_timer)
        self._unread_timer = self.loop.call_later(MAX_UNREAD_S, self.transport.abort)

    def _close(self) -> None:
        """Close the connection; what is left of an answer is the client's to read in time."""
        self.transport.close()
        self._wait_for_reader()


def _stopped(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class Server(uvicorn.Server):
    """A server of an application of `make_app`: at its end, requests get `drain_s` seconds."""

    def __init__(self, app: Any, *, drain_s: float) -> None:
        config = uvicorn.Config(
            app,
            http=TimedProtocol,
            ws="none",
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=FLUSH_S,
            timeout_keep_alive=15,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        super().__init__(config)
        self._app, self._drain_s = app, drain_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take on nothing more, and let every request end in an answer, before connections do."""
        for server in self.servers:
            server.close()
        await self._app.state.drain(self._drain_s)
        await super().shutdown(sockets)


def run_app(app: Any, listening: socket.socket, *, drain_s: float) -> None:
    """Serve until SIGTERM or SIGINT; then take on nothing more and finish what there is.

    What is not finished after `drain_s` seconds is stopped, and its client is told so.
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn raises it again at its end
    try:
        Server(app, drain_s=drain_s).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
