"""What clients send is bounded, whatever they are; and every request ends in an answer."""

import http.client
import json
import socket
import threading
import time

import pytest

pytest.importorskip("fastapi")

from tests.serving.support import Client, until
from tests.serving.test_app import Canned

from tacache.serving import http_server
from tacache.serving.app import make_app
from tacache.serving.http_server import MAX_HEADER_BYTES, Server, bound


@pytest.fixture
def server():
    """A server in a thread, which ends when it is told to."""
    listening = bound("127.0.0.1", 0)
    running = Server(make_app(Canned(), "tiny"), drain_s=1.0)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until(lambda: running.started)
    running.client, running.thread = Client(listening.getsockname()[1]), thread
    yield running
    running.should_exit = True
    thread.join(30)
    listening.close()


def connected(server):
    return socket.create_connection(("127.0.0.1", server.client.port), timeout=20)


REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def flood(connection, part, size):
    """Send the same without an end, `size` bytes in all."""
    for _ in range(size // len(part)):
        connection.sendall(part)
        time.sleep(0.001)


def test_headers_without_an_end_are_cut_off(server):
    with connected(server) as connection:
        connection.sendall(REQUEST)
        with pytest.raises(ConnectionError):
            flood(connection, b"X-A: " + b"a" * 8000 + b"\r\n", 100 * MAX_HEADER_BYTES)
    assert server.client.get("/healthz").status == 200


@pytest.mark.parametrize(
    "begin", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /h"]
)
def test_a_client_that_sends_its_headers_slowly_is_let_go(server, monkeypatch, begin):
    monkeypatch.setattr(http_server, "MAX_HEADER_S", 0.3)
    with connected(server) as connection:
        connection.sendall(begin)
        while connection.recv(4096):  # until the server closes it
            continue


def test_requests_that_come_before_an_answer_fill_no_memory(server):
    """Each answer made room for a whole buffer of more: 200 MB in four seconds."""
    with connected(server) as connection, pytest.raises(ConnectionError):
        flood(connection, (REQUEST + b"\r\n") * 1000, 50 << 20)
    assert server.client.get("/healthz").status == 200


def test_a_client_that_never_reads_its_answer_is_let_go(server, monkeypatch):
    monkeypatch.setattr(http_server, "MAX_UNREAD_S", 0.3)
    monkeypatch.setattr("tests.serving.test_app.PICTURE", bytes(1 << 24))
    path = server.client.post("/v1/jobs", {"prompt": "a fox"}).headers["location"]
    until(lambda: server.client.get(path).body["status"] == "done")
    with connected(server) as connection:
        connection.sendall(f"GET {path}/result HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: len(server.server_state.connections) == 1)
        until(lambda: not server.server_state.connections)


def test_a_body_that_never_arrives_is_answered(server, monkeypatch):
    monkeypatch.setattr("tacache.serving.guards.MAX_BODY_S", 0.3)
    with connected(server) as connection:
        connection.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(4096)


def test_at_the_end_followers_are_told_and_late_requests_are_answered(server, caplog):
    client, answers = server.client, {}
    path = client.post("/v1/jobs", {"prompt": "never"}).headers["location"]

    def follow():
        answers["events"] = client.get(f"{path}/events").raw.decode()

    def generate():
        answers["picture"] = client.post("/v1/images/generations", {"prompt": "never"})

    threads = [threading.Thread(target=work) for work in (follow, generate)]
    for thread in threads:
        thread.start()
    until(lambda: len(server.server_state.tasks) == 2)
    started = time.monotonic()
    server.should_exit = True
    for thread in (*threads, server.thread):
        thread.join(30)
    assert time.monotonic() - started < 8  # one second to drain, and some to flush
    last = answers["events"].split("data: ")[-1]
    assert json.loads(last)["status"] == "cancelled"
    assert answers["picture"].status == 503
    assert "Traceback" not in caplog.text


def test_nothing_new_is_taken_on_while_it_drains(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.client.port, timeout=20)
    connection.request("GET", "/healthz")
    assert connection.getresponse().read()
    server.client.post("/v1/jobs", {"prompt": "never"})
    server.should_exit = True
    until(lambda: server._app.state.is_draining)
    body = json.dumps({"prompt": "a fox"})
    connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 503
