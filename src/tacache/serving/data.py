"""Whole lists of prompts on Ray Data: a copy of the model in each of several processes."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ray
from ray.data import ActorPoolStrategy, DataContext, from_items

from tacache.errors import TACacheError
from tacache.hosts.generation import Output
from tacache.serving.cluster import join

MakeOne = Callable[[int, str, int], Output]  # a prompt's number, its text, and a seed
Job = tuple[int, str, int]


class Made(NamedTuple):
    """What became of one prompt and seed: an output, or the reason why there is none."""

    prompt: str
    seed: int
    output: Output | None = None
    error: str | None = None


class Generator:
    """A copy of the model, as `map_batches` calls it: every row makes one output."""

    def __init__(self, load: Callable[[], MakeOne]) -> None:
        self._make = load()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Return the outputs of some rows as JSON; an error of one row stays its own."""
        rows = zip(batch["index"], batch["prompt"], batch["seed"], strict=True)
        results = [self._one(int(index), str(text), int(seed)) for index, text, seed in rows]
        return {
            "output": [result if isinstance(result, str) else "" for result in results],
            "error": [str(result) if isinstance(result, Exception) else "" for result in results],
            "is_ours": [isinstance(result, TACacheError) for result in results],
            "prompt": list(batch["prompt"]),
            "seed": list(batch["seed"]),
        }

    def _one(self, index: int, text: str, seed: int) -> str | Exception:
        try:
            return self._make(index, text, seed).model_dump_json()
        except Exception as error:
            return error


def generate_all(
    load: Callable[[], MakeOne],
    jobs: Sequence[Job],
    *,
    copies: int | None = None,
    address: str | None = None,
) -> Iterator[Made]:
    """Make every output on Ray, in the order of the jobs; what is done is there at once.

    `load` is called once in each process and returns what makes one output. Without a number of
    copies there is one a GPU, or one in all. An error of ours is of the plan or the call, so it
    would be that of every prompt: it is raised.
    """
    join(address)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    number = min(copies or max(1, gpus), max(1, len(jobs)))
    context = DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    rows = [{"index": index, "prompt": text, "seed": seed} for index, text, seed in jobs]
    dataset = from_items(rows, override_num_blocks=len(rows)).map_batches(
        Generator,
        fn_constructor_args=(load,),
        batch_size=1,
        num_cpus=1,
        num_gpus=1 if gpus else 0,
        compute=ActorPoolStrategy(size=number),
    )
    for row in dataset.iter_rows():
        if row["is_ours"]:
            raise TACacheError(row["error"])
        output = Output.model_validate_json(row["output"]) if row["output"] else None
        yield Made(row["prompt"], int(row["seed"]), output, row["error"] or None)
