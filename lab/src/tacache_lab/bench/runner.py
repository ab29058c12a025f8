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
from filelock import FileLock, Timeout

from tacache.errors import PlanError, StorageError, TACacheError
from tacache.prompts import Sample
from tacache.work.processes import Processes
from tacache_lab.bench.bars import Bar, bar
from tacache_lab.bench.calibration_sets import CalibrationSet
from tacache_lab.bench.expected_costs import expected_costs, seconds_of_evaluation, told
from tacache_lab.bench.host_calls import Calls, host_of
from tacache_lab.bench.judging import FULL, Judge, References, work_folder
from tacache_lab.bench.machines import same_device
from tacache_lab.bench.model_caches import InsideMethod
from tacache_lab.bench.named_methods import NamedMethod, resolve
from tacache_lab.bench.records import Adds, Record, RecordError, RecordFile, Status, plain
from tacache_lab.bench.rivals import Rival
from tacache_lab.bench.sources import code_sha256
from tacache_lab.bench.tasks import BenchJob, Task
from tacache_lab.bench.tracing import is_traceable
from tacache_lab.bench.tuning_journal import Prepared, TuningJournal

Item = TypeVar("Item")
# what takes longest to make ready, begun first so that no process ends long after the others
SLOW = ("budcache", "magcache", "fitted", "fitted-flow", "easycache", "teacache-x")


def run_bench(
    pipe: Any,
    job: BenchJob,
    out: str | Path,
    *,
    progress: bool = False,
    tell: Callable[[str], None] | None = None,
) -> list[Record]:
    """Run what is left of a job, append its records to `out`, and return all of its records.

    `pipe` is a pipeline of diffusers, BAGEL's InterleaveInferencer, or a host. `tell` is told line
    by line, before anything is run, what it is going to cost.
    """
    job.check()
    methods = [resolve(name) for name in dict.fromkeys(job.methods) if name != FULL]
    host, file = host_of(pipe), RecordFile(out)
    processes = host.processes()
    with processes.failing_together():
        file.load()  # what is no file of records is refused before a model runs
    caller = Calls(host, dict(job.call), job.subjects[0])
    check_reach(job, methods, caller.steps)
    with only_here(file, processes):
        bench = Bench(caller, job, file, processes, progress and processes.rank == 0)
        bench.run(methods, tell if processes.rank == 0 else None)
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


def check_reach(job: BenchJob, methods: Sequence[NamedMethod], steps: int) -> None:
    """Refuse budgets that no run has, and calibration prompts that are too few or are judged."""
    for evaluations in job.evaluations:
        if not 1 <= evaluations <= steps:
            raise TACacheError(f"a run of {steps} steps has no {evaluations} evaluations")
    for chosen in methods:
        shared = set(job.calibration_prompts(chosen)) & set(job.prompts)
        if shared and chosen.method.calibrated:
            raise TACacheError(
                f"{chosen.name} would calibrate on {min(shared)!r}, which is judged: name others"
            )


class Bench:
    """One process's share of a benchmark."""

    def __init__(
        self, caller: Calls, job: BenchJob, file: RecordFile, processes: Processes, progress: bool
    ) -> None:
        self.caller, self.job, self.file = caller, job, file
        self.processes, self.progress = processes, progress
        self.folder = work_folder(file.path)
        self.done = file.load()
        with processes.failing_together() as together:
            mine = same_device(caller.device)
            per_device = together.exchange(mine).count(mine)
        self.judge = Judge(caller, job, file.path, self.done, processes.count, per_device)
        self.bar = Bar()

    def run(
        self, methods: Sequence[NamedMethod], tell: Callable[[str], None] | None = None
    ) -> None:
        """Do everything that is not in the results yet; first tell what that costs."""
        tasks = list(self.tasks(methods))
        self.check_same_setup(tasks)
        left = [task for task in tasks if any(self.is_left(s, task) for s in self.job.subjects)]
        sets = [task.calibration_set for task in left if task.calibrated]
        samples = {
            subject: calibration_set
            for calibration_set in sets
            for subject in calibration_set.subjects
        }
        if tell is not None and left:
            self.tell_costs(left, len(samples), tell)
        self.share(list(samples), "calibrating", lambda s: samples[s].record(s))
        self.share(sorted(left, key=slowest_first), "tuning", self.prepare)
        rank, count = self.processes.rank, self.processes.count
        with self.processes.failing_together(), self.file.adding(rank, count) as add:
            self.sample(left, add)

    def tell_costs(
        self, left: Sequence[Task], calibration_samples: int, tell: Callable[[str], None]
    ) -> None:
        """Measure an evaluation, and tell what these tasks cost."""
        costs = expected_costs(self.job, left, calibration_samples, self.caller.steps)
        seconds = seconds_of_evaluation(self.caller, self.job.subjects[0])
        for line in told(costs, seconds, self.processes.count):
            tell(line)

    def tasks(self, methods: Sequence[NamedMethod]) -> Iterator[Task]:
        """Pair every method with every budget; one that has its own budget stands once."""
        sets: dict[tuple[str, tuple[str, ...]], CalibrationSet] = {}
        for chosen in methods:
            place = (
                chosen.source or self.job.calibration_source,
                self.job.calibration_prompts(chosen),
            )
            new = CalibrationSet(self.caller, self.folder, *place, self.job.flow, self.job.tries)
            calibration_set = sets.setdefault(place, new)
            for budget in self.job.evaluations if chosen.method.budgeted else (None,):
                yield Task(chosen, budget, calibration_set)

    def check_same_setup(self, tasks: Sequence[Task]) -> None:
        """Refuse a file with records of another model or call, or of a method tuned otherwise."""
        sets = {
            task.chosen.name: task.calibration_set.prompts_sha256
            for task in tasks
            if task.calibrated
        }
        for record in self.done.values():
            if (record.origin, record.fine, record.reference) != self.setup:
                raise RecordError(
                    f"{self.file.path} holds records of another model, call or reference: "
                    "name another file"
                )
            tuned_on = record.tuned_on and record.tuned_on.prompts_sha256
            if tuned_on and sets.get(record.method, tuned_on) != tuned_on:
                raise RecordError(
                    f"{self.file.path} holds records of {record.method} calibrated on other "
                    "prompts: name another file"
                )

    @property
    def setup(self) -> tuple[Any, int | None, str | None]:
        """Return what all records of a file have in common."""
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

    def tuning_file(self, task: Task) -> Path:
        """Return the file that keeps the tuning of a method for a budget."""
        name = task.chosen.name.partition("@")[0]
        code, tuned = code_sha256(task.chosen.method), task.calibration_set
        how = (tuned.flow, tuned.most) if tuned.flow or tuned.most else ()
        key = self.caller.key(tuned.prompts_sha256, name, task.evaluations, code, *how)
        return self.folder / f"tuning-{key}.jsonl"

    def prepared(self, task: Task) -> Prepared:
        """Return what a tuning that is over came to."""
        prepared = TuningJournal(self.tuning_file(task)).prepared
        if prepared is None:
            raise RecordError(f"{task} was not made ready: run the same command again")
        return prepared

    def prepare(self, task: Task) -> None:
        """Make a method ready, unless it is; where that fails, the reason is kept instead."""
        started, calibration_set = time.perf_counter(), task.calibration_set
        status: Status = "done"
        reason = kind = settings = None
        with torch.no_grad(), self.caller.counting(self.bar.tick) as spent:
            tuning = TuningJournal(self.tuning_file(task), lambda: spent.total)
            if tuning.prepared is not None:
                return
            if isinstance(task.chosen.method, Rival):
                calibration_set = replace(calibration_set, tries=tuning)
            try:
                best = task.chosen.method.prepare(calibration_set, task.evaluations)
                kind, settings = type(best).__name__, plain(best)
            except PlanError as error:
                status, reason = "unreachable", str(error)
            except StorageError:
                raise  # no other sample could be kept either
            except Exception as error:
                status, reason = "failed", f"{type(error).__name__}: {error}"
        prepared = Prepared(
            status=status,
            reason=reason,
            kind=kind,
            settings=settings,
            seconds=time.perf_counter() - started,
            # a cache inside the model is called at every step, evaluated or not
            evaluations=None
            if isinstance(task.chosen.method, InsideMethod)
            else tuning.evaluations + spent.total,
        )
        tuning.finish(prepared)

    def sample(self, tasks: Sequence[Task], add: Adds) -> None:
        """Run every task for every subject of this process's share."""
        rank, count = self.processes.rank, self.processes.count
        mine = self.job.subjects[rank::count]
        todo = [(s, task) for s in mine for task in (None, *tasks) if self.is_left(s, task)]
        ready = [self.prepared(task) for task in tasks]
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
                        "tuned_on": tuned_on[task.calibration_set.prompts_sha256]
                        if task.calibrated
                        else None,
                    }
                    add(self.judge.record(task.key(subject), **fields, **more))
                self.bar.advance()

    def is_left(self, subject: Sample, task: Task | None) -> bool:
        """Return whether a record is missing; None stands for the references."""
        if task is not None:
            traced = is_traceable(task.chosen.method)
            return self.judge.is_left(task.key(subject), traced=traced)
        keys = self.judge.reference_keys(subject)
        return any(self.judge.is_left(key, traced=key.method == FULL) for key in keys)


def slowest_first(task: Task) -> tuple[int, int]:
    """Return the order in which methods are made ready."""
    name = task.chosen.name.partition("@")[0]
    return SLOW.index(name) if name in SLOW else len(SLOW), -(task.evaluations or 0)


def drop_failed(out: str | Path) -> int:
    """Take failed records out of the results, to run them again; return how many they were."""
    file = RecordFile(out)
    file.load()  # what is no file of records is refused
    with only_here(file, Processes(0, 1)):
        records = file.load()
        kept = [record for record in records.values() if record.status != "failed"]
        for tuning in map(TuningJournal, work_folder(file.path).glob("tuning-*.jsonl")):
            if tuning.prepared is not None and tuning.prepared.status == "failed":
                tuning.retry()
        if len(kept) < len(records):
            file.replace(kept)
    return len(records) - len(kept)


def lock_file(results: Path) -> Path:
    """Return the lock that a benchmark holds while it appends to the results."""
    return work_folder(results) / "lock"


@contextmanager
def held(lock: Path, results: Path) -> Iterator[None]:
    """Hold a lock file while results are worked on; a kill lets go of it.

    Results are written anew where parts are joined: what another benchmark appends meanwhile would
    be lost.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    holding = FileLock(lock)
    try:
        holding.acquire(timeout=0)
    except Timeout as error:
        raise RecordError(
            f"another benchmark is appending to {results}: wait for it, or name another file and "
            "put the two together afterwards (cat A B > C)"
        ) from error
    try:
        yield
    finally:
        holding.release()
