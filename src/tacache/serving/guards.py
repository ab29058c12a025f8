"""Who may ask, and how much they may send: checked before a request is read."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from tacache.serving.protocol import Refused
from tacache.work.addresses import host_name, is_local

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
MAX_BODY_S = 30.0  # for a body to arrive
OPEN = ("/healthz",)  # without a key


class Guards:
    """An ASGI application in front of another: keys, host names and the size of bodies.

    Without keys only requests that name this machine as their host get in, so that no page of a
    browser reaches the server under another name.
    """

    def __init__(self, app: Any, *, keys: Sequence[str], most: int) -> None:
        self.app, self.most = app, most
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with what is wrong."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check(scope)
            body = await asyncio.wait_for(read_body(scope, receive, self.most), MAX_BODY_S)
        except asyncio.TimeoutError:
            late = Refused(f"the body did not arrive within {MAX_BODY_S:g} s", status=408)
            await JSONResponse(late.body(), 408, {"Connection": "close"})(scope, receive, send)
            return
        except Refused as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
            answer = JSONResponse(error.body(), error.status, {**headers, "Connection": "close"})
            await answer(scope, receive, send)
            return
        await self.app(scope, replayed(body, receive), send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if scope["path"] in OPEN:
            return
        if not self._keys:
            if not is_local(host_name(headers.get("host", ""))):
                raise Refused("this server answers on localhost only", status=403)
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        matches = [hmac.compare_digest(token.strip().encode(), key) for key in self._keys]
        if kind.lower() != "bearer" or not any(matches):
            raise Refused(
                "an API key is needed: Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
            )


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """Return the body of a request; one that is longer than allowed is Refused.

    Whatever its header says, no more than `most` bytes and a message are ever held.
    """
    too_long = Refused(f"a request has at most {most} bytes", status=413)
    declared = Headers(scope=scope).get("content-length", "0")
    if declared.isdecimal() and int(declared) > most:
        raise too_long
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused("the client went away", status=499)
        body += bytes(message.get("body", b""))
        if len(body) > most:
            raise too_long
        if not message.get("more_body", False):
            return body


def replayed(body: bytes, receive: Receive) -> Receive:
    """Give the body that was read, and then what else the client sends: that it goes away."""
    left = [body]

    async def again() -> MutableMapping[str, Any]:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again
