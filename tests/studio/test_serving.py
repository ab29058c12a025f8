"""The real server, asked without a browser: who gets in, and what comes out."""

import json
import urllib.error
import urllib.request

import pytest

pytest.importorskip("gradio")

from tacache.errors import TACacheError
from tacache.studio.server import Opening, free_port, serving

pytestmark = pytest.mark.slow


def get(address):
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read().decode(), answer.headers


def test_the_page_comes_from_this_machine_alone(model, store):
    with serving(model, store, Opening(port=0)) as address:
        text, headers = get(address)
        assert address.startswith("http://127.0.0.1:")
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        for foreign in ("googleapis", "gstatic", "cdnjs", "jsdelivr", "unpkg"):
            assert foreign not in text
        config = json.loads(get(f"{address}config")[0])
        assert config["analytics_enabled"] is False
        port = int(address.rsplit(":", 1)[1].strip("/"))
        with (
            pytest.raises(TACacheError, match=f"port {port}"),
            serving(model, store, Opening(port=port)),
        ):
            pytest.fail("the port is taken")


def test_without_the_password_nobody_sees_anything(model, store):
    with serving(model, store, Opening(port=0, auth=("me", "secret"))) as address:
        for path in ("config", "gradio_api/info"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                get(f"{address}{path}")
            assert caught.value.code in (401, 403, 404), path


def test_large_uploads_are_refused(model, store):
    with serving(model, store, Opening(port=0)) as address:
        body = (
            b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n'
            b"Content-Type: application/json\r\n\r\n" + b" " * (5 * 2**19) + b"\r\n--x--\r\n"
        )
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        asked = urllib.request.Request(f"{address}gradio_api/upload", body, headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(asked, timeout=20)
        assert caught.value.code == 413


def test_a_port_that_nobody_uses():
    assert free_port("127.0.0.1") > 1023
