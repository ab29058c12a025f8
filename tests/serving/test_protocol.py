import json
import pickle

import pytest

from tacache.serving.protocol import (
    ImagesBody,
    JobBody,
    Limits,
    Refused,
    check_limits,
    parsed,
)


def wanted(kind=ImagesBody, **fields):
    return parsed(kind, json.dumps({"prompt": "a fox", **fields}).encode())


def refusal(kind=ImagesBody, **fields):
    with pytest.raises(Refused) as caught:
        check_limits(wanted(kind, **fields), Limits(), "tiny")
    return caught.value


def test_what_openai_has_is_read():
    found = wanted(n=2, size="256x128", model="tiny", user="me", response_format="b64_json")
    check_limits(found, Limits(), "tiny")
    assert found.pictures == 2
    assert found.shape == {"width": 256, "height": 128}


def test_without_a_seed_each_request_has_its_own():
    assert wanted().seed != wanted().seed


def test_a_size_of_none_and_auto_are_the_models_own():
    assert wanted().shape == wanted(size="auto").shape == {}


def test_the_frames_of_a_job_are_part_of_its_shape():
    assert wanted(JobBody, frames=9, size="32x16").shape == {
        "width": 32,
        "height": 16,
        "num_frames": 9,
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speed": 4}, "speed"),
        ({"n": "2"}, "n"),
        ({"n": 0}, "n"),
        ({"evaluations": 0}, "evaluations"),
        ({"speedup": 0.5}, "speedup"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"like_steps": 0}, "like_steps"),
        ({"like_steps": 2.5}, "like_steps"),
        ({"min_psnr": 0}, "min_psnr"),
        ({"min_psnr": 35, "psnr_of": "best"}, "psnr_of"),
        ({"seed": -1}, "seed"),
        ({"prompt": ""}, "prompt"),
        ({"response_format": "gif"}, "response_format"),
        ({"frames": 5}, "frames"),
        ({"image": "/etc/passwd"}, "image"),
    ],
)
def test_a_wrong_field_is_named(fields, param):
    with pytest.raises(Refused) as caught:
        wanted(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in str(caught.value)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"\xff", b'{"prompt": NaN}', b"[" * 100_000, b'{"n": 1}']
)
def test_a_body_that_is_no_request_is_refused(body):
    with pytest.raises(Refused):
        parsed(ImagesBody, body)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 9}, "n"),
        ({"size": "4096x16"}, "size"),
        ({"size": "100x100"}, "size"),
        ({"size": "0x16"}, "size"),
        ({"size": "huge"}, "size"),
        ({"prompt": "a" * 4001}, "prompt"),
        ({"response_format": "url"}, "response_format"),
        ({"evaluations": 3, "speedup": 2.0}, "speedup"),
        ({"speedup": 2.0, "like_steps": 28}, "like_steps"),
        ({"evaluations": 5, "min_psnr": 35.0}, "min_psnr"),
        ({"like_steps": 28, "min_psnr": 35.0}, "min_psnr"),
        ({"like_steps": 10**10}, "like_steps"),
        ({"min_psnr": 1e4}, "min_psnr"),
        ({"like_steps": 28, "psnr_of": "p5"}, "psnr_of"),
        ({"min_psnr": 2000, "psnr_of": "p5"}, "min_psnr"),
        ({"psnr_of": "p5"}, "psnr_of"),
    ],
)
def test_more_than_the_limits_allow_is_refused(fields, param):
    assert refusal(**fields).param == param


def test_too_many_frames_are_refused():
    assert refusal(JobBody, frames=1000).param == "frames"


def test_another_model_is_not_found():
    assert (refusal(model="other").status, refusal(model="other").code) == (404, "model_not_found")


def test_a_refusal_travels_between_processes():
    sent = Refused("no", status=503, param="n", code="overloaded", retry_after=3)
    found = pickle.loads(pickle.dumps(sent))
    assert (found.body(), found.status, found.retry_after) == (sent.body(), 503, 3)
    assert found.body()["error"]["type"] == "server_error"
