import asyncio

import pytest

from tacache.errors import TACacheError
from tacache.studio import server
from tacache.studio.server import (
    MAX_BODY_BYTES,
    MAX_WRONG_LOGINS,
    Guarded,
    Opening,
    check_opening,
    read_auth,
)
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


async def page(scope, receive, send):
    """Answer a wrong password with 400, as Gradio does, and all else with what was sent."""
    status = 400 if scope["path"] == "/login" else 200
    body = (await receive())["body"] if scope["method"] == "POST" else b""
    headers = [(b"x-content-type-options", b"own")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def asked(guarded, path="/", body=None, client="10.0.0.1", **headers):
    """The answer to one request: its start and its body."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    named = {"host": "localhost:7860", **headers}
    scope = {
        "type": "http",
        "method": "GET" if body is None else "POST",
        "path": path,
        "client": (client, 1),
        "headers": [(k.encode(), v.encode()) for k, v in named.items()],
    }
    asyncio.run(guarded(scope, receive, send))
    return sent


def test_every_answer_forbids_what_comes_from_elsewhere():
    start, body = asked(Guarded(page, is_open=True))
    headers = dict(start["headers"])
    assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert headers[b"x-content-type-options"] == b"own"
    assert body["body"] == b""


@pytest.mark.parametrize(
    ("host", "is_open", "status"),
    [
        ("127.0.0.1:7860", False, 200),
        ("LocalHost", False, 200),
        ("[::1]:7860", False, 200),
        ("evil.example:7860", False, 403),
        ("", False, 403),
        ("studio.example", True, 200),
    ],
)
def test_a_page_for_this_machine_answers_no_other_name(host, is_open, status):
    assert asked(Guarded(page, is_open=is_open), host=host)[0]["status"] == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:7860", 200),
        ("http://LOCALHOST:7860", 200),
        ("http://localhost:3000", 403),
        ("http://127.0.0.1:7860", 403),
        ("https://evil.example", 403),
        ("null", 403),
    ],
)
@pytest.mark.parametrize("body", [None, b"a file"])
def test_pages_of_other_origins_are_not_answered(origin, status, body):
    answer = asked(Guarded(page, is_open=True), "/gradio_api/upload", body, origin=origin)
    assert answer[0]["status"] == status


def test_what_is_sent_is_bounded_and_so_is_all_of_it(tmp_path, monkeypatch):
    guarded = Guarded(page, is_open=True, uploads=tmp_path)
    assert asked(guarded, "/upload", b"a" * 100)[1]["body"] == b"a" * 100
    assert asked(guarded, "/upload", b"a" * (MAX_BODY_BYTES + 1))[0]["status"] == 413
    monkeypatch.setattr(server, "MAX_UPLOADED_BYTES", 10)
    (tmp_path / "plan.json").write_bytes(b"a" * 11)
    assert asked(guarded, "/upload", b"a")[0]["status"] == 507
    assert asked(guarded, "/", b"a")[0]["status"] == 200


def test_after_some_wrong_passwords_a_client_waits(monkeypatch):
    guarded = Guarded(page, is_open=True)
    statuses = [asked(guarded, "/login", b"x")[0]["status"] for _ in range(MAX_WRONG_LOGINS + 2)]
    assert statuses == [400] * MAX_WRONG_LOGINS + [429, 429]
    assert asked(guarded, "/login", b"x", client="10.0.0.2")[0]["status"] == 400
    monkeypatch.setattr(server, "LOGIN_S", 0.0)
    assert asked(guarded, "/login", b"x")[0]["status"] == 400
