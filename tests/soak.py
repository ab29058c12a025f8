"""Random clients on one server for a long time: `python -m tests.soak MINUTES` (or `make soak`).

Most clients ask for pictures of three budgets and two sizes, which are compared with direct calls.
Some cancel, some go away, some send nonsense. Memory and threads are measured all the while; the
run fails where they grow, or where a picture is wrong or missing.
"""

import json
import os
import random
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tests.serving.support import CALL, GENERATIONS, Client, drawn, same_picture, served, until
from tests.tiny import PIPELINES

from tacache.serving.app import make_app
from tacache.serving.model_source import settle
from tacache.serving.worker import Worker

CLIENTS = 12
PROMPTS = ("a fox", "two birds on a fence", "a lamp", "a very long road to the sea")
BUDGETS = (4, 6, 12)
SIZES = ("32x32", "48x32")
GROWTH = 0.05  # of memory, from a third of the time on to the end
MARGIN = 24.0  # MB that may come and go
WORDS = ("picture", "cancel", "leave", "nonsense")
SHARES = (82, 6, 6, 6)


def megabytes() -> float:
    """The memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Soak:
    """Clients that ask at random until the time is over, and what became of it."""

    def __init__(self, pipe: Any, worker: Worker, client: Client, end: float) -> None:
        self.client, self.end = client, end
        self.counts: Counter[str] = Counter()
        self.wanted = {
            (prompt, size, budget): self._direct(pipe, worker, prompt, size, budget)
            for prompt in PROMPTS
            for size in SIZES
            for budget in BUDGETS
        }

    def _direct(self, pipe: Any, worker: Worker, prompt: str, size: str, budget: int) -> np.ndarray:
        width, height = map(int, size.split("x"))
        run = worker._setting({"width": width, "height": height})
        plan = worker.budgets.offer(run, budget).plan
        return drawn(pipe, plan, prompt, 0, width=width, height=height)

    def ask(self, seed: int) -> None:
        """Be one client after another."""
        chance = random.Random(seed)
        while time.monotonic() < self.end:
            what = chance.choices(WORDS, SHARES)[0]
            key = chance.choice(list(self.wanted))
            try:
                getattr(self, what)(key)
                self.counts[what] += 1
            except Exception as error:
                self.counts["wrong"] += 1
                print(f"{what} {key}: {type(error).__name__}: {error}", flush=True)
            time.sleep(chance.random() * 0.2)

    def body(self, key: tuple[str, str, int]) -> dict[str, Any]:
        """A request for one of the pictures that are known."""
        prompt, size, budget = key
        return {"prompt": prompt, "size": size, "evaluations": budget, "seed": 0}

    def picture(self, key: tuple[str, str, int]) -> None:
        """Ask for a picture and compare it."""
        answer = self.client.post(GENERATIONS, self.body(key))
        assert answer.status == 200, answer.raw
        (found,), wanted = answer.pictures(), self.wanted[key]
        off = np.abs(found.astype(int) - wanted)
        assert same_picture(found, wanted), f"off by {off.max()}, {off.mean():.3g} a pixel"

    def cancel(self, key: tuple[str, str, int]) -> None:
        """Start a job and stop it."""
        job = self.client.post("/v1/jobs", self.body(key)).body
        found = self.client.send("DELETE", f"/v1/jobs/{job['id']}").body["status"]
        assert found in ("cancelled", "done"), found

    def leave(self, key: tuple[str, str, int]) -> None:
        """Ask, and go away."""
        text = json.dumps(self.body(key)).encode()
        head = f"POST {GENERATIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n"
        with socket.create_connection(("127.0.0.1", self.client.port)) as connection:
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + text)
            time.sleep(0.02)

    def nonsense(self, key: tuple[str, str, int]) -> None:
        """Ask for what there is not."""
        answer = self.client.post(GENERATIONS, {**self.body(key), "size": "many"})
        assert answer.status == 400, answer.raw


def main() -> None:
    """Run, print a line a minute, and end with 1 where something grew or was wrong."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    pipe = PIPELINES["flux"].build()
    pipe.set_progress_bar_config(disable=True)
    worker = Worker(pipe, CALL, max_rows=8)
    worker.warm_up()
    settle()
    with served(make_app(worker, "tiny")) as client:
        soak = Soak(pipe, worker, client, time.monotonic() + 60 * minutes)
        threads = [threading.Thread(target=soak.ask, args=(i,)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        seen = measured(soak, minutes)
        for thread in threads:
            thread.join()
        until(lambda: client.metric("evaluations_queued") == 0)
        print(
            f"batches {client.metric('batches'):.0f}, rows {client.metric('rows'):.0f}", flush=True
        )
    sys.exit(judged(seen, soak.counts))


def measured(soak: Soak, minutes: float) -> list[tuple[float, int]]:
    """Memory and threads, looked at 120 times while the clients ask."""
    seen, wait = [], max(0.1, minutes * 60 / 120)
    while time.monotonic() < soak.end:
        time.sleep(wait)
        seen.append((megabytes(), threading.active_count()))
        if len(seen) % 4 == 0:
            print(f"{seen[-1][0]:.0f} MB, {seen[-1][1]} threads, {dict(soak.counts)}", flush=True)
    return seen


def judged(seen: list[tuple[float, int]], counts: Counter[str]) -> int:
    """0 where nothing grew and nothing was wrong, else 1; both with a line that says so."""
    third = len(seen) // 3
    early, late = seen[third : 2 * third], seen[2 * third :]
    before, after = (float(np.median([one[0] for one in part])) for part in (early, late))
    threads = [max(one[1] for one in part) for part in (early, late)]
    grows = after > before * (1 + GROWTH) + MARGIN or threads[1] > threads[0] + 4
    print(
        f"{sum(counts.values())} requests, {counts['wrong']} wrong; memory {before:.0f} MB, then "
        f"{after:.0f} MB; threads {threads[0]}, then {threads[1]}: "
        f"{'it grows' if grows else 'nothing grows'}"
    )
    return int(grows or counts["wrong"] > 0)


if __name__ == "__main__":
    main()
