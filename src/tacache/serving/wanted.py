"""What clients may ask for over HTTP, and within which limits; all else is refused by name."""

import re
import secrets
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacache.errors import TACacheError
from tacache.storage.files import Frozen
from tacache.storage.reading import parse_json

SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
MULTIPLE = 16  # of pixels: what pipelines would otherwise round a size to
INVALID = "invalid_request_error"
Kind = TypeVar("Kind", bound=BaseModel)


class Refused(TACacheError):  # noqa: N818 - a request may well be right and come too early
    """A request that is not taken on: the status, a sentence, and when to try again."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.retry_after = retry_after

    def __reduce__(self) -> Any:
        """By its fields: it travels between processes."""
        return _refused, (self.message, self.status, self.param, self.code, self.retry_after)

    def body(self) -> dict[str, Any]:
        """The answer in the shape of OpenAI's errors."""
        kind = INVALID if self.status < 500 else "server_error"
        found = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": found}


def _refused(message: str, status: int, param: Any, code: Any, retry_after: Any) -> Refused:
    return Refused(message, status=status, param=param, code=code, retry_after=retry_after)


class Limits(Frozen):
    """How much one request may ask for, and how much may wait in all."""

    pictures: Annotated[int, Field(ge=1)] = 8  # of one request
    side: Annotated[int, Field(ge=MULTIPLE)] = 2048  # pixels of a width or height
    frames: Annotated[int, Field(ge=1)] = 257  # of a clip
    pixels: Annotated[int, Field(ge=1)] = 1 << 28  # of all frames of one output
    prompt: Annotated[int, Field(ge=1)] = 4000  # characters
    body: Annotated[int, Field(ge=1)] = 64 * 1024  # bytes of a request
    queued: Annotated[int, Field(ge=1)] = 20_000  # evaluations of all requests taken on
    jobs: Annotated[int, Field(ge=1)] = 256  # that are kept, with their results
    kept: Annotated[int, Field(ge=1)] = 1 << 30  # bytes of their results


class Wanted(BaseModel):
    """What all requests have in common: a prompt, a seed, and how fast or how well."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompt: Annotated[str, Field(min_length=1)]
    size: str | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = Field(
        default_factory=lambda: secrets.randbelow(1 << 31)
    )
    evaluations: Annotated[int, Field(ge=1)] | None = None
    speedup: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    min_psnr: Annotated[float, Field(allow_inf_nan=False)] | None = None
    model: str | None = None
    user: str | None = None

    @property
    def pictures(self) -> int:
        """How many outputs are wanted."""
        return 1

    @property
    def shape(self) -> dict[str, int]:
        """The arguments of the pipeline's call that say how large an output is."""
        if self.size is None or self.size == "auto":
            return {}
        found = SIZE.fullmatch(self.size)
        if found is None:
            raise Refused(f"size is WIDTHxHEIGHT, such as 512x512, not {self.size!r}", param="size")
        width, height = map(int, found.groups())
        if width % MULTIPLE or height % MULTIPLE:
            raise Refused(
                f"width and height are multiples of {MULTIPLE}, not {self.size}", param="size"
            )
        return {"width": width, "height": height}


class WantedPictures(Wanted):
    """The body of `POST /v1/images/generations`, as OpenAI has it, with fields of our own."""

    n: Annotated[int, Field(ge=1)] = 1
    response_format: Literal["b64_json", "url"] = "b64_json"

    @property
    def pictures(self) -> int:
        """How many pictures are wanted."""
        return self.n


class WantedJob(Wanted):
    """The body of `POST /v1/jobs`: one picture or clip."""

    frames: Annotated[int, Field(ge=1)] | None = None

    @property
    def shape(self) -> dict[str, int]:
        """The size, and the frames of a clip."""
        return {**super().shape, **({} if self.frames is None else {"num_frames": self.frames})}


def parsed(kind: type[Kind], body: bytes) -> Kind:
    """The request that a body holds, or a Refused that names the field that is wrong."""
    try:
        return kind.model_validate(parse_json(body.decode("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or None
        what = {"extra_forbidden": "is not known here", "missing": "is missing"}.get(first["type"])
        said = what or f"cannot be used: {first['msg'][:1].lower()}{first['msg'][1:]}"
        raise Refused(
            f"{field or 'the request'} {said}", param=field, code=first["type"]
        ) from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or numbers without bounds
        raise Refused(f"the body is no JSON object: {error}") from error


def check_limits(wanted: Wanted, limits: Limits, model: str) -> None:
    """Refuse what is larger than this server allows, or what it does not offer."""
    if wanted.model is not None and wanted.model != model:
        raise Refused(
            f"this server has the model {model}, not {wanted.model!r}: leave it out or name it",
            status=404, param="model", code="model_not_found",
        )  # fmt: skip
    if getattr(wanted, "response_format", None) == "url":
        raise Refused(
            "response_format is b64_json here: no pictures are kept to be fetched by a url",
            param="response_format",
        )
    if wanted.evaluations is not None and wanted.speedup is not None:
        raise Refused("give evaluations or speedup, not both", param="speedup")
    shape = wanted.shape
    asked = {
        "prompt": (len(wanted.prompt), limits.prompt, "characters"),
        "n": (wanted.pictures, limits.pictures, "pictures"),
        "size": (max(shape.get("width", 0), shape.get("height", 0)), limits.side, "pixels a side"),
        "frames": (shape.get("num_frames", 0), limits.frames, "frames"),
        "pixels": (_pixels(shape), limits.pixels, "pixels in all frames"),
    }
    for name, (value, most, unit) in asked.items():
        if value > most:
            raise Refused(f"{name} has {value} {unit}: at most {most} are allowed", param=name)


def _pixels(shape: dict[str, int]) -> int:
    """The pixels of an output, as far as a request says them."""
    return shape.get("width", 1) * shape.get("height", 1) * max(1, shape.get("num_frames", 1))
