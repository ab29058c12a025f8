"""A model under load: the batcher, one request after another, and whole-request batches of eight.

    python -m benchmarks.serving.throughput encode -o prompts.pt
    python -m benchmarks.serving.throughput run tiny-flux --inputs prompts.pt -o throughput.jsonl
    python -m benchmarks.serving.throughput run flux --size 1024 --requests 12 -o throughput.jsonl

Requests of budgets 7, 10 and 13 in turn arrive by Poisson, `--times` as often as one request after
another could be served. All three ways serve the same requests, and each is tried before: with all
of them, or with `--warm` at once. tiny-flux follows its fitted plans; FLUX has random weights, and
instant ones.

Latency is from a request's arrival to its picture. Errors of finish estimates are relative to the
time that was really left, a sample of all requests every 20 ms; those after the last arrival apart,
since an estimate knows nothing of requests to come.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks.fullsize.records import device_name, versions
from benchmarks.serving.arrivals import poisson
from benchmarks.serving.pipelines import calls, encode, flux, flux_calls, tiny_flux, tiny_flux_plans
from benchmarks.serving.ways import Load, batched, one_after_another, whole_requests
from torch import Tensor

from tacache import Plan
from tacache.diffusers import applied
from tacache.serving import Batcher
from tacache.serving.model_source import settle

BUDGETS = (7, 10, 13)
TIMES = 6.0  # as often as one after another could be served


def service_seconds(pipe: Any, plans: dict[int, Plan], call: dict[str, Any]) -> float:
    """The mean time of a direct call over the budgets, warm."""
    taken = []
    for plan in (plans[min(plans)], *plans.values()):
        start = time.perf_counter()
        with applied(pipe, plan):
            pipe(**call).images.float().cpu()
        taken.append(time.perf_counter() - start)
    return statistics.mean(taken[1:])


def made_ready(options: Any) -> tuple[Any, dict[int, Plan], list[dict[str, Any]]]:
    """The pipeline, the plan of every budget, and the calls of all requests."""
    if options.model == "tiny-flux":
        embeddings = torch.load(options.inputs, weights_only=True)
        requests = calls(embeddings, options.requests, options.device)
        return tiny_flux(options.device), tiny_flux_plans(BUDGETS), requests
    pipe, call, plans = flux(options.device, options.size, BUDGETS, tiny=options.tiny)
    return pipe, plans, flux_calls(pipe, call, options.requests)


def run(options: Any) -> dict[str, Any]:
    """Serve the load three ways; one record."""
    pipe, plans, requests = made_ready(options)
    alone = service_seconds(pipe, plans, requests[0])
    rate = options.times / alone
    budgets = [BUDGETS[n % len(BUDGETS)] for n in range(options.requests)]
    load = Load(requests, budgets, poisson(options.requests, rate, seed=0).tolist())
    warm = options.warm
    trial = load if not warm else Load(requests[:warm], budgets[:warm], [0.0] * warm)
    figures: dict[str, dict[str, Any]] = {}
    pictures: dict[str, dict[int, Tensor]] = {}

    def measure(name: str, serve: Callable[[Load], dict[str, Any]]) -> None:
        serve(trial)
        figures[name] = serve(load)
        pictures[name] = dict(load.pictures)

    measure("one_after_another", lambda load: one_after_another(pipe, plans, load))
    measure("whole_requests", lambda load: whole_requests(pipe, plans, load))
    limits = {"max_rows": options.max_rows, "max_active": options.max_active}
    settle()
    with Batcher(pipe, **limits, use_graphs=not options.no_graphs) as batcher:
        batcher.submit(plan=plans[max(plans)], **requests[0]).result()  # as a server warms up
        measure("batcher", lambda load: batched(batcher, plans, load))
    served = {name: way["requests_per_second"] for name, way in figures.items()}
    return {
        "what": "throughput",
        "model": options.model if options.model == "tiny-flux" else f"flux-{options.size}",
        "device": device_name(torch.device(options.device)),
        "requests": options.requests,
        "budgets": list(BUDGETS),
        "seconds_alone": alone,
        "times": options.times,
        "arrivals_per_second": rate,
        **limits,
        "order": "first come, first served",
        "graphs": not options.no_graphs,
        "graph_rows": "few",
        **figures,
        "gain_over_one_after_another": served["batcher"] / served["one_after_another"],
        "gain_over_whole_requests": served["batcher"] / served["whole_requests"],
        "largest_difference_of_pictures": {
            name: apart(pictures["one_after_another"], pictures[name])
            for name in ("whole_requests", "batcher")
        },
        "versions": versions(),
        "note": options.note,
    }


def apart(pictures: dict[int, Tensor], others: dict[int, Tensor]) -> float:
    """The largest difference of two sets of pictures, whose values are in [0, 1]."""
    return max(float((others[n] - picture).abs().max()) for n, picture in pictures.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Encode prompts, or serve them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    encoding, running = commands.add_parser("encode"), commands.add_parser("run")
    running.add_argument("model", choices=("tiny-flux", "flux"))
    running.add_argument("--inputs", type=Path, help="of `encode`, for tiny-flux")
    running.add_argument("--size", type=int, default=1024, help="pixels to a side, for flux")
    running.add_argument("--tiny", action="store_true", help="small classes of flux, for a test")
    running.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    running.add_argument("--times", type=float, default=TIMES, help="what one after another serves")
    running.add_argument("--requests", type=int, default=64)
    running.add_argument("--warm", type=int, default=0, help="requests that are tried; 0: all")
    running.add_argument("--max-rows", type=int, default=32)
    running.add_argument("--max-active", type=int, default=64)
    running.add_argument("--no-graphs", action="store_true", help="launch every kernel by itself")
    running.add_argument("--note", default="")
    for command in (encoding, running):
        command.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.command == "encode":
        encode(options.out)
        return
    words = list(sys.argv[1:] if arguments is None else arguments)
    record = run(options) | {
        "command": "python -m benchmarks.serving.throughput " + " ".join(words)
    }
    print(json.dumps(record, indent=1))
    with options.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
