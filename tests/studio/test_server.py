import asyncio

import pytest

from tacache.errors import TACacheError
from tacache.studio.server import Guarded, Opening, check_opening, read_auth
from tacache.work.addresses import is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_a_page_for_others_needs_a_password(host):
    assert not is_local(host)
    with pytest.raises(TACacheError, match="--auth USER:PASSWORD"):
        check_opening(Opening(host))
    check_opening(Opening(host, auth=("me", "secret")))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_on_this_machine_none_is_needed(host):
    check_opening(Opening(host))


def test_the_page_is_local_unless_told_otherwise():
    assert is_local(Opening().host)


def test_who_may_come_in_is_read():
    assert read_auth(None) is None
    assert read_auth("me:se:cret") == ("me", "se:cret")
    for wrong in ("", "me", "me:", ":secret"):
        with pytest.raises(TACacheError, match="USER:PASSWORD"):
            read_auth(wrong)


def test_every_answer_forbids_what_comes_from_elsewhere():
    async def app(scope, receive, send):
        headers = [(b"x-content-type-options", b"own")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Guarded(app, is_open=True)({"type": "http"}, None, send))
    headers = dict(sent[0]["headers"])
    assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert headers[b"x-content-type-options"] == b"own"
    assert sent[1]["type"] == "http.response.body"


@pytest.mark.parametrize(
    ("host", "is_open", "status"),
    [
        (b"127.0.0.1:7860", False, 200),
        (b"localhost", False, 200),
        (b"[::1]:7860", False, 200),
        (b"evil.example:7860", False, 403),
        (b"", False, 403),
        (b"studio.example", True, 200),
    ],
)
def test_a_page_for_this_machine_answers_no_other_name(host, is_open, status):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(b"host", host)]}
    asyncio.run(Guarded(app, is_open=is_open)(scope, None, send))
    assert sent[0]["status"] == status
