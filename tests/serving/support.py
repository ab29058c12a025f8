"""What tests of the server share: a model that is quick to make, a server in a thread, a client."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tacache.diffusers import applied
from tacache.plan import Plan
from tacache.serving.http_server import Server, bound

STEPS = 12
CALL = {
    "num_inference_steps": STEPS,
    "height": 32,
    "width": 32,
    "guidance_scale": 3.5,
    "max_sequence_length": 32,
}
GENERATIONS = "/v1/images/generations"


class Answer:
    """Status, headers and body of a response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers = response.status, dict(response.getheaders())
        self.raw = response.read()

    @property
    def body(self) -> Any:
        """The JSON of the answer."""
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        """The error, which has OpenAI's four fields and no others."""
        found = self.body["error"]
        assert set(found) == {"message", "type", "param", "code"}
        return found

    def pictures(self) -> list[np.ndarray]:
        """The pictures of a good answer, as arrays of bytes."""
        return [
            np.asarray(Image.open(io.BytesIO(base64.b64decode(one["b64_json"]))))
            for one in self.body["data"]
        ]


class Client:
    """A client of a server on this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """The answer to a request over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, body, sent)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        """The answer to a GET."""
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """The answer to a POST of JSON, or of bytes as they are."""
        return self.send("POST", path, body, **headers)

    def metric(self, name: str) -> float:
        """A number of `/metrics`, summed over replicas."""
        found = self.metrics(name)
        assert found, name
        return sum(found.values())

    def metrics(self, name: str) -> dict[str, float]:
        """A number of `/metrics`, by replica."""
        lines = self.get("/metrics").raw.decode().splitlines()
        names = (f"tacache_{name}{{", f"tacache_{name}_total{{")
        found = [line for line in lines if line.startswith(names)]
        return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in found}


@contextmanager
def served(app: Any) -> Iterator[Client]:
    """A server in a thread of its own, for the length of a block."""
    listening = bound("127.0.0.1", 0)
    server = Server(app, drain_s=60)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until(lambda: server.started, 60)
    try:
        yield Client(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(120)
        listening.close()
        assert not thread.is_alive()


def tiny_flux() -> Any:
    """A tiny FLUX pipeline that says nothing."""
    from tests.tiny import PIPELINES

    made = PIPELINES["flux"].build()
    made.set_progress_bar_config(disable=True)
    return made


@contextmanager
def on_ray(
    pipe: Any, folder: Path, call: dict[str, Any], *, max_rows: int, **options: Any
) -> Iterator[Client]:
    """A server of a pipeline on Ray, which starts and ends with the block."""
    from tacache.serving.app import make_app
    from tacache.serving.model_source import ModelSource
    from tacache.serving.replicas import RayBackend

    pipe.save_pretrained(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    source = ModelSource(str(folder), call=call, max_rows=max_rows)
    with served(make_app(RayBackend.start(source, **options), "tiny")) as client:
        yield client


def until(is_so: Any, seconds: float = 60.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never was"
        time.sleep(0.01)


def drawn(pipe: Any, plan: Plan | None, prompt: str, seed: int, **call: Any) -> np.ndarray:
    """The picture of a direct call of the pipeline, as a file holds it."""
    import torch

    arguments = {**CALL, **call, "prompt": prompt, "output_type": "np"}
    arguments["generator"] = torch.Generator().manual_seed(seed)
    if plan is None:
        made = pipe(**arguments)
    else:
        with applied(pipe, plan):
            made = pipe(**arguments)
    return (made[0][0].clip(0, 1) * 255).round().astype(np.uint8)


def same_picture(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether two pictures are the same but for rounding."""
    return found.shape == wanted.shape and int(np.abs(found.astype(int) - wanted).max()) <= 1
