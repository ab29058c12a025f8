"""What clients may ask for over HTTP, and within which limits; all else is refused by name."""

import re
import secrets
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tacache.errors import PlanError, TACacheError
from tacache.fitting.quality_goal import Measure, QualityGoal, check_one_budget
from tacache.storage.files import Frozen
from tacache.storage.reading import parse_json

SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
MULTIPLE = 16  # of pixels: what pipelines would otherwise round a size to
MAX_SEED = 1 << 63  # of which there is none
BUDGETS = ("evaluations", "speedup", "like_steps", "min_psnr")  # of which a request has one
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
        """Reduce by its fields: it travels between processes."""
        return _refused, (self.message, self.status, self.param, self.code, self.retry_after)

    def body(self) -> dict[str, Any]:
        """Return the answer in the shape of OpenAI's errors."""
        kind = INVALID if self.status < 500 else "server_error"
        fields = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}


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


class RequestBody(BaseModel):
    """What all requests have in common: a prompt, a seed, and how fast or how well."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    prompt: Annotated[str, Field(min_length=1)]
    size: str | None = None
    seed: Annotated[int, Field(ge=0, lt=MAX_SEED)] = Field(
        default_factory=lambda: secrets.randbelow(1 << 31),
        json_schema_extra={"type": ["integer", "null"]},
    )
    evaluations: Annotated[int, Field(ge=1)] | None = None
    speedup: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    like_steps: Annotated[int, Field(ge=1)] | None = None
    min_psnr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    psnr_of: Measure = "mean"
    model: str | None = None
    user: str | None = None

    @field_validator("seed", mode="before")
    @classmethod
    def _drawn(cls, seed: Any) -> Any:
        """Draw a seed where the client sends null, as where it sends none."""
        return secrets.randbelow(1 << 31) if seed is None else seed

    @property
    def goal(self) -> QualityGoal | None:
        """Return the quality that is asked for, or None; one that cannot be is a PlanError."""
        return QualityGoal.of(self.like_steps, self.min_psnr, self.psnr_of)

    @property
    def pictures(self) -> int:
        """Return how many outputs are wanted."""
        return 1

    @property
    def shape(self) -> dict[str, int]:
        """Return the arguments of the pipeline's call that say how large an output is."""
        if self.size is None or self.size == "auto":
            return {}
        match = SIZE.fullmatch(self.size)
        if match is None:
            raise Refused(f"size is WIDTHxHEIGHT, such as 512x512, not {self.size!r}", param="size")
        width, height = map(int, match.groups())
        if width % MULTIPLE or height % MULTIPLE:
            raise Refused(
                f"width and height are multiples of {MULTIPLE}, not {self.size}", param="size"
            )
        return {"width": width, "height": height}


class ImagesBody(RequestBody):
    """The body of `POST /v1/images/generations`, as OpenAI has it, with fields of our own."""

    n: Annotated[int, Field(ge=1)] | None = 1
    response_format: Literal["b64_json", "url"] | None = "b64_json"
    # what front-ends send to any server of this kind, and what changes no picture here
    quality: str | None = None
    output_format: Literal["png"] | None = None
    output_compression: int | None = None  # of other formats
    background: str | None = None
    style: str | None = None
    moderation: str | None = None
    stream: Literal[False] | None = None
    partial_images: Literal[0] | None = None

    @property
    def pictures(self) -> int:
        """Return how many pictures are wanted."""
        return self.n or 1


class JobBody(RequestBody):
    """The body of `POST /v1/jobs`: one picture or clip."""

    frames: Annotated[int, Field(ge=1)] | None = None

    @property
    def shape(self) -> dict[str, int]:
        """Return the size, and the frames of a clip."""
        return {**super().shape, **({} if self.frames is None else {"num_frames": self.frames})}


def parsed(kind: type[Kind], body: bytes) -> Kind:
    """Return the request that a body holds, or a Refused that names the field that is wrong."""
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


def check_limits(wanted: RequestBody, limits: Limits, model: str) -> None:
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
    if wanted.seed + wanted.pictures > MAX_SEED:
        raise Refused(
            f"seeds count on from the first: with {wanted.pictures} pictures it is at most "
            f"{MAX_SEED - wanted.pictures}",
            param="seed",
        )
    _check_budget(wanted)
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


def _check_budget(wanted: RequestBody) -> None:
    """Refuse two ways to say how often the model is evaluated, and what is no quality."""
    asked = {name: getattr(wanted, name) for name in BUDGETS}
    named = [name for name, value in asked.items() if value is not None]
    try:
        check_one_budget(asked)
        wanted.goal  # noqa: B018
    except PlanError as error:
        is_named = len(named) > 1 or "min_psnr" in named or wanted.psnr_of == "mean"
        param = named[-1] if is_named else "psnr_of"
        raise Refused(str(error), param=param) from error


def _pixels(shape: dict[str, int]) -> int:
    """Return the pixels of an output, as far as a request says them."""
    return shape.get("width", 1) * shape.get("height", 1) * max(1, shape.get("num_frames", 1))
