"""How a benchmark runs: calibrate, tune every method, then judge all from the same noise.

Whatever is finished is in a file: calibration runs, tries, settings and references in a folder
beside the results, records in the results. A killed benchmark goes on where it stopped; under
`torchrun` or `accelerate launch` each part of the work is shared out between the processes.
Settings are kept by the code that made them: where a method has changed, it is made ready again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from tacache.errors import PlanError, StorageError, TACacheError
from tacache.lab.bench.bars import Bar, bar
from tacache.lab.bench.calibration_sets import CalibrationSet
from tacache.lab.bench.hosts import host_of
from tacache.lab.bench.jobs import Job, Prepared, Task
from tacache.lab.bench.judging import FULL, Judge, work_folder
from tacache.lab.bench.locks import held
from tacache.lab.bench.machines import same_device
from tacache.lab.bench.methods import Asked, resolve
from tacache.lab.bench.model_caches import InsideMethod
from tacache.lab.bench.records import Adds, Record, RecordError, RecordFile, Status, plain
from tacache.lab.bench.references import References
from tacache.lab.bench.rivals import Rival
from tacache.lab.bench.seam import Calls
from tacache.lab.bench.sources import code_sha256
from tacache.lab.bench.tracing import is_traceable
from tacache.lab.bench.tries import KnownTries
from tacache.prompts import Sample
from tacache.storage.atomic import write_atomically
from tacache.storage.reading import read_bounded
from tacache.work.processes import Processes

Item = TypeVar("Item")
# what takes longest to make ready, begun first so that no process ends long after the others
SLOW = ("budcache", "magcache", "fitted", "fitted-flow", "easycache", "teacache-x")


def run_bench(pipe: Any, job: Job, out: str | Path, *, progress: bool = False) -> list[Record]:
    """Run what is left of a job, append its records to `out`, and return all of its records.

    `pipe` is a pipeline of diffusers, BAGEL's InterleaveInferencer, or a host.
    """
    job.check()
    asked = [resolve(name) for name in dict.fromkeys(job.methods) if name != FULL]
    host, file = host_of(pipe), RecordFile(out)
    processes = host.processes()
    with processes.failing_together():
        file.load()  # what is no file of records is refused before a model runs
    caller = Calls(host, dict(job.call), job.subjects[0])
    check_reach(job, asked, caller.steps)
    with only_here(file, processes):
        Bench(caller, job, file, processes, progress and processes.rank == 0).run(asked)
    return list(file.load().values())


@contextmanager
def only_here(file: RecordFile, processes: Processes) -> Iterator[None]:
    """Keep other benchmarks from appending to the results; join parts before and after."""
    with ExitStack() as stack:
        with processes.failing_together():
            if processes.rank == 0:
                stack.enter_context(held(lock_file(file.path), file.path))
                file.join()
        yield
        with processes.failing_together():
            if processes.rank == 0:
                file.join()


def check_reach(job: Job, asked: Sequence[Asked], steps: int) -> None:
    """Refuse budgets that no run has, and calibration prompts that are too few or are judged."""
    for evaluations in job.evaluations:
        if not 1 <= evaluations <= steps:
            raise TACacheError(f"a run of {steps} steps has no {evaluations} evaluations")
    for one in asked:
        shared = set(job.calibration_prompts(one)) & set(job.prompts)
        if shared and one.method.calibrated:
            raise TACacheError(
                f"{one.name} would calibrate on {min(shared)!r}, which is judged: name others"
            )


class Bench:
    """One process's share of a benchmark."""

    def __init__(
        self, caller: Calls, job: Job, file: RecordFile, processes: Processes, progress: bool
    ) -> None:
        self.caller, self.job, self.file = caller, job, file
        self.processes, self.progress = processes, progress
        self.folder = work_folder(file.path)
        self.done = file.load()
        with processes.failing_together() as together:
            mine = same_device(caller.device)
            sharing = together.exchange(mine).count(mine)
        self.judge = Judge(caller, job, file.path, self.done, processes.count, sharing)
        self.bar = Bar()

    def run(self, asked: Sequence[Asked]) -> None:
        """Do everything that is not in the results yet."""
        tasks = list(self.tasks(asked))
        self.check_same_setup(tasks)
        left = [task for task in tasks if any(self.is_left(s, task) for s in self.job.subjects)]
        sets = [task.calibration_set for task in left if task.calibrated]
        samples = {subject: one for one in sets for subject in one.subjects}
        self.share(list(samples), "calibrating", lambda s: samples[s].record(s))
        self.share(sorted(left, key=slowest_first), "tuning", self.prepare)
        rank, count = self.processes.rank, self.processes.count
        with self.processes.failing_together(), self.file.adding(rank, count) as add:
            self.sample(left, add)

    def tasks(self, asked: Sequence[Asked]) -> Iterator[Task]:
        """Pair every method with every budget; one that has its own budget stands once."""
        sets: dict[tuple[str, tuple[str, ...]], CalibrationSet] = {}
        for one in asked:
            place = one.source or self.job.calibration_source, self.job.calibration_prompts(one)
            new = CalibrationSet(self.caller, self.folder, *place, self.job.flow, self.job.tries)
            calibration_set = sets.setdefault(place, new)
            for budget in self.job.evaluations if one.method.budgeted else (None,):
                yield Task(one, budget, calibration_set)

    def check_same_setup(self, tasks: Sequence[Task]) -> None:
        """Records of one file are of one model, called in one way, and each method tuned once."""
        sets = {
            task.asked.name: task.calibration_set.prompts_sha256
            for task in tasks
            if task.calibrated
        }
        for record in self.done.values():
            if (record.host, record.fine, record.reference) != self.setup:
                raise RecordError(
                    f"{self.file.path} holds records of another model, call or reference: "
                    "name another file"
                )
            tuned_on = record.taught and record.taught.prompts_sha256
            if tuned_on and sets.get(record.method, tuned_on) != tuned_on:
                raise RecordError(
                    f"{self.file.path} holds records of {record.method} calibrated on other "
                    "prompts: name another file"
                )

    @property
    def setup(self) -> tuple[Any, int | None, str | None]:
        """What all records of a file have in common."""
        return self.caller.host, self.job.fine, self.judge.reference_name

    def share(self, items: Sequence[Item], what: str, work: Callable[[Item], None]) -> None:
        """Do those items of some work that no other process does."""
        with self.processes.claiming(self.folder) as claims, self.watching(what, items):
            for i, item in enumerate(items):
                if claims.take(i):
                    self.bar.begin(item.text if isinstance(item, Sample) else str(item))
                    work(item)
                self.bar.advance()

    @contextmanager
    def watching(self, what: str, items: Sequence[Any]) -> Iterator[None]:
        """Show a bar for some work."""
        with bar(what, len(items), self.progress) as self.bar:
            yield

    def prepared_file(self, task: Task) -> Path:
        """The file that keeps a method's settings for a budget."""
        name = task.asked.name.partition("@")[0]
        code, tuned = code_sha256(task.asked.method), task.calibration_set
        how = (tuned.flow, tuned.most) if tuned.flow or tuned.most else ()
        key = self.caller.key(tuned.prompts_sha256, name, task.evaluations, code, *how)
        return self.folder / f"settings-{key}.json"

    def prepare(self, task: Task) -> None:
        """Make a method ready, unless it is; where that fails, the reason is kept instead."""
        if self.prepared_file(task).exists():
            return
        started, calibration_set = time.perf_counter(), task.calibration_set
        status: Status = "done"
        reason = kind = settings = None
        with torch.no_grad(), self.caller.counting(self.bar.tick) as spent:
            tries = KnownTries(self.prepared_file(task).with_suffix(".tries"), lambda: spent.total)
            if isinstance(task.asked.method, Rival):
                calibration_set = replace(calibration_set, tries=tries)
            try:
                made = task.asked.method.prepare(calibration_set, task.evaluations)
                kind, settings = type(made).__name__, plain(made)
            except PlanError as error:
                status, reason = "unreachable", str(error)
            except StorageError:
                raise  # no other sample could be kept either
            except Exception as error:
                status, reason = "failed", f"{type(error).__name__}: {error}"
        kept = Prepared(
            status=status,
            reason=reason,
            kind=kind,
            settings=settings,
            seconds=time.perf_counter() - started,
            # a cache inside the model is called at every step, evaluated or not
            evaluations=None
            if isinstance(task.asked.method, InsideMethod)
            else tries.evaluations + spent.total,
        )
        write_atomically(self.prepared_file(task), kept.model_dump_json() + "\n")
        if status != "failed":  # what can be tried again goes on from there
            tries.forget()

    def sample(self, tasks: Sequence[Task], add: Adds) -> None:
        """Run every task for every subject of this process's share."""
        rank, count = self.processes.rank, self.processes.count
        mine = self.job.subjects[rank::count]
        todo = [(s, task) for s in mine for task in (None, *tasks) if self.is_left(s, task)]
        ready = [load_prepared(self.prepared_file(task)) for task in tasks]
        by_task = dict(zip(tasks, ready, strict=True))
        sets = {
            task.calibration_set.prompts_sha256: task.calibration_set
            for task in tasks
            if task.calibrated
        }
        tuned_on = {key: calibration_set.tuned_on for key, calibration_set in sets.items()}
        known: tuple[Sample, References] | None = None
        if todo:
            self.judge.warm_up(todo[0][0])
        with self.watching("sampling", todo):
            for subject, task in todo:
                self.bar.begin(str(task or "references"))
                if known is None or known[0] != subject:
                    known = subject, self.judge.reference(subject, add)
                if task is not None:
                    fields = self.judge.judged(task, by_task[task], subject, known[1])
                    more = {
                        "prepare_seconds": by_task[task].seconds,
                        "prepare_evaluations": by_task[task].evaluations,
                        "taught": tuned_on[task.calibration_set.prompts_sha256]
                        if task.calibrated
                        else None,
                    }
                    add(self.judge.record(task.key(subject), **fields, **more))
                self.bar.advance()

    def is_left(self, subject: Sample, task: Task | None) -> bool:
        """Whether a record is missing; None stands for the references."""
        if task is not None:
            traced = is_traceable(task.asked.method)
            return self.judge.is_left(task.key(subject), traced=traced)
        keys = self.judge.reference_keys(subject)
        return any(self.judge.is_left(key, traced=key.method == FULL) for key in keys)


def slowest_first(task: Task) -> tuple[int, int]:
    """The order in which methods are made ready."""
    name = task.asked.name.partition("@")[0]
    return SLOW.index(name) if name in SLOW else len(SLOW), -(task.evaluations or 0)


def load_prepared(file: Path) -> Prepared:
    """Read the file that is written when a method is tuned."""
    try:
        return Prepared.model_validate_json(read_bounded(file))
    except ValueError as error:
        raise RecordError(
            f"{file} is damaged: delete it, and run the same command again"
        ) from error


def drop_failed(out: str | Path) -> int:
    """Take failed records out of the results, to run them again; return how many they were."""
    file = RecordFile(out)
    file.load()  # what is no file of records is refused
    with only_here(file, Processes(0, 1)):
        found = file.load()
        kept = [record for record in found.values() if record.status != "failed"]
        for settings in work_folder(file.path).glob("settings-*.json"):
            if load_prepared(settings).status == "failed":
                settings.unlink()
        if len(kept) < len(found):
            file.replace(kept)
    return len(found) - len(kept)


def lock_file(results: Path) -> Path:
    """The lock that a benchmark holds while it appends to the results."""
    return work_folder(results) / "lock"
