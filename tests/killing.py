"""Benchmarks killed at random moments until they are done: `python -m tests.killing FOLDER`.

A process of its own forks and kills the runs: it has one thread. Forks share the lock that tqdm
makes, and a run killed while it holds that one would stop all after it, so it is given another.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch
from lab.tests.bench.test_runner import FLUX, job
from tqdm.auto import tqdm

from tacache_lab.bench import run_bench

KILLS = 10


def main(folder: Path) -> None:
    """Write results to 0.jsonl, 1.jsonl and so on, until ten runs were killed in all."""
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0  # which would be a second thread
    pipe, draw = FLUX.build(), random.Random(0)
    run_bench(pipe, job(fine=12), folder / "first.jsonl")  # its forks begin warm

    def started(out: Path) -> int:
        assert threading.active_count() == 1
        child = os.fork()
        if child:
            return child
        run_bench(pipe, job(fine=12), out)
        os._exit(0)

    begin = time.perf_counter()
    assert os.waitpid(started(folder / "timed.jsonl"), 0)[1] == 0
    whole = time.perf_counter() - begin
    kills = files = 0
    while kills < KILLS:
        child = started(folder / f"{files}.jsonl")
        time.sleep(draw.uniform(0, whole / 2))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL)
        kills += status == signal.SIGKILL
        files += status == 0
    assert os.waitpid(started(folder / f"{files}.jsonl"), 0)[1] == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
