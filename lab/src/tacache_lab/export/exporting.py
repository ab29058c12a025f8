"""How an export runs: every sample is drawn into its place and gets one record.

Samples whose file and record are there are left alone, so that a killed export goes on where it
stopped; under `torchrun` or `accelerate launch` the samples are shared out between the processes.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacache.errors import HostError, StorageError
from tacache.hosts import Host
from tacache.storage.atomic import write_atomically
from tacache.work.progress import track
from tacache_lab.bench.host_calls import Calls
from tacache_lab.bench.records import Key, Record, RecordError, RecordFile
from tacache_lab.bench.runner import Bench, drop_failed, only_here
from tacache_lab.export import records_file
from tacache_lab.export.benchmarks import PromptEntry, SampleFile, benchmark
from tacache_lab.export.export_request import ExportRequest
from tacache_lab.export.sample_drawing import Drawing, drawing


def run_export(
    host: Host,
    request: ExportRequest,
    entries: Sequence[PromptEntry],
    wanted: Sequence[SampleFile],
    folder: str | Path,
    *,
    progress: bool = False,
) -> list[Record]:
    """Draw what is missing of a benchmark's samples; the records of all of them."""
    job, file, processes = request.job(wanted), RecordFile(records_file(folder)), host.processes()
    with processes.failing_together():
        if processes.rank == 0:
            drop_failed(file.path)  # to be tried again
            _write_metadata(request.benchmark, entries, Path(folder))
    with only_here(file, processes):
        caller = Calls(host, dict(job.call), job.subjects[0])
        bench = Bench(caller, job, file, processes, progress and processes.rank == 0)
        with drawing(bench, request) as way:
            export = Export(bench, way, request, Path(folder))
            export.check(wanted)
            export.run(wanted)
    known, keys = file.load(), [way.key(sample_file.sample) for sample_file in wanted]
    return [known[key] for key in keys if key in known]


class Export:
    """One process's share of an export."""

    def __init__(
        self, bench: Bench, drawing: Drawing, request: ExportRequest, folder: Path
    ) -> None:
        self.bench, self.drawing, self.folder = bench, drawing, folder
        self.clips, self.title = (
            benchmark(request.benchmark).clips,
            benchmark(request.benchmark).title,
        )

    def check(self, wanted: Sequence[SampleFile]) -> None:
        """Refuse a folder that holds samples of another model, method or seed."""
        self.bench.check_same_setup([])
        method, evaluations, shared, _ = self.drawing
        same = (method, evaluations, shared.get("settings"))
        for record in self.bench.done.values():
            if (record.method, record.evaluations, record.settings) != same:
                raise RecordError(
                    f"{self.folder} holds samples by {record.method} at {record.evaluations} "
                    "evaluations, or with other settings: name another folder"
                )
        drawn = {str(record.picture): record.key for record in self.bench.done.values()}
        for sample_file in wanted:
            if drawn.get(self.picture(sample_file), self.key(sample_file)) != self.key(sample_file):
                raise RecordError(
                    f"{self.folder / sample_file.file} was drawn with another prompt or seed: name "
                    "another folder"
                )

    def run(self, wanted: Sequence[SampleFile]) -> None:
        """Draw every sample of this process's share that is not there yet."""
        processes, bench = self.bench.processes, self.bench
        mine = [
            sample_file
            for sample_file in wanted[processes.rank :: processes.count]
            if not self.is_there(sample_file)
        ]
        with (
            processes.failing_together(),
            bench.file.adding(processes.rank, processes.count) as add,
        ):
            for sample_file in track(mine, f"drawing for {self.title}", bench.progress):
                fields = self.drawn(sample_file)
                add(bench.judge.record(self.key(sample_file), **self.drawing.shared, **fields))

    def drawn(self, wanted: SampleFile) -> dict[str, Any]:
        """Draw one sample into its place; the fields of its record, with the reason on failure."""
        if wanted.trouble is not None:
            return {"status": "failed", "reason": wanted.trouble}
        target = self.folder / wanted.file
        target.parent.mkdir(parents=True, exist_ok=True)  # evaluators look into it in any case
        draft = self.bench.folder / f"draft-{os.getpid()}"
        try:
            draft_file, fields = self.drawing.draw(wanted.sample, draft)
        except StorageError:
            raise  # no other sample could be kept either
        except Exception as error:
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
        self.check_kind(draft_file)
        draft_file.replace(target)
        return {"status": "done", "picture": self.picture(wanted), **fields}

    def check_kind(self, draft_file: Path) -> None:
        """Refuse pictures for a benchmark of clips, and the reverse, at the first one."""
        if (draft_file.suffix == ".mp4") != self.clips:
            draft_file.unlink()
            drawn, judged = ("pictures", "clips") if self.clips else ("clips", "pictures")
            raise HostError(f"{self.title} judges {judged}, and this pipeline makes {drawn}")

    def is_there(self, wanted: SampleFile) -> bool:
        """Return whether a sample is in its place, with its record."""
        record = self.bench.done.get(self.key(wanted))
        return (
            record is not None and record.status == "done" and (self.folder / wanted.file).is_file()
        )

    def key(self, wanted: SampleFile) -> Key:
        """Return the key of a sample's record."""
        return self.drawing.key(wanted.sample)

    def picture(self, wanted: SampleFile) -> str:
        """Return the path of a sample's file as seen from the records."""
        return f"{self.folder.name}/{wanted.file}"


def _write_metadata(name: str, entries: Sequence[PromptEntry], folder: Path) -> None:
    """Write what the evaluator reads beside an entry's samples."""
    chosen = benchmark(name)
    for place, entry in enumerate(entries):
        if chosen.metadata is not None and entry.metadata is not None:
            write_atomically(folder / chosen.metadata(place), entry.metadata.strip() + "\n")
