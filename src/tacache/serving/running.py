"""Running the HTTP application in this process until it is told to stop."""

import signal
import socket
from collections.abc import Sequence
from typing import Any

import uvicorn

from tacache.errors import HostError
from tacache.work.addresses import is_local


def check_address(host: str, keys: Sequence[str]) -> None:
    """Refuse to be reached from other machines without keys."""
    if not keys and not is_local(host):
        raise HostError(
            f"at --host {host} other machines can reach the server: give an --api-key, or set "
            "TACACHE_API_KEYS"
        )


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address, before a model is loaded for it; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)
        raise HostError(f"cannot listen at {host}, port {port}: {reason}") from error
    return made


def opened(listening: socket.socket) -> str:
    """Let clients connect, and return the address for them: who comes early waits a moment."""
    listening.listen(2048)
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_app(app: Any, listening: socket.socket, *, drain_s: float) -> None:
    """Serve until SIGTERM or SIGINT; then take on nothing more and finish what there is.

    What is not finished after `drain_s` seconds is cut off.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=max(1, round(drain_s)),
        timeout_keep_alive=15,
        h11_max_incomplete_event_size=64 * 1024,
    )
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn raises it again at its end
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
