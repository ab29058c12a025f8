"""Scripts in processes of their own that begin with torch and diffusers imported.

Most tests of several processes would spend their time on that import, five seconds a process. Here
a server with one thread imports them once, and forks each process off.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
import sys
import tempfile
from pathlib import Path

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tacache.diffusers", "diffusers.pipelines.flux.pipeline_flux"])


class ForkedScript:
    """A script that runs as the main module of a new process."""

    def __init__(self, script: str, *arguments: object, **environment: object) -> None:
        """Start it, with these words in `sys.argv` and more variables than are set here."""
        self._outputs = tempfile.TemporaryDirectory()
        self._files = [Path(self._outputs.name, name) for name in ("out", "err")]
        variables = os.environ | {name: str(value) for name, value in environment.items()}
        words = ["script", *map(str, arguments)]
        self._process = PROCESSES.Process(
            target=_run, args=(script, words, dict(variables), self._files)
        )
        self._process.start()

    def is_running(self) -> bool:
        """Tell whether it has not ended yet."""
        return self._process.is_alive()

    def kill(self) -> None:
        """End it at once, and wait until it has."""
        self._process.kill()
        self._process.join()

    def wait(self, timeout: float = 300) -> int | None:
        """Wait for its end, and return its exit code; what runs longer is killed."""
        self._process.join(timeout)
        if self.is_running():
            self.kill()
        return self._process.exitcode

    def output(self) -> tuple[str, str]:
        """What it has written to its standard output and its standard error."""
        out, err = (file.read_text() if file.exists() else "" for file in self._files)
        return out, err


def run_two_ranks(script: str, *arguments: object, timeout: float = 120) -> tuple[int, str]:
    """Run a script in two processes that find each other, as those of a launcher do.

    Returns the worse exit code, and what both have written to standard error.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free.getsockname()[1]}
    ranks = [
        ForkedScript(script, *arguments, WORLD_SIZE=2, RANK=rank, LOCAL_RANK=rank, **place)
        for rank in range(2)
    ]
    codes = [rank.wait(timeout) or 0 for rank in ranks]
    return max(map(abs, codes)), "".join(rank.output()[1] for rank in ranks)


def _run(script: str, words: list[str], variables: dict[str, str], files: list[Path]) -> None:
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = words
    try:
        exec(compile(script, "script", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # which processes of multiprocessing leave out
