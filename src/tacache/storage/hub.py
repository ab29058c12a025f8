"""Share plans through a hub: push them with a card that says what they do, and pull them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tacache.errors import PlanError, TACacheError, printable
from tacache.plan import Plan
from tacache.storage.reading import read_bounded

SUFFIX = ".plan.json"
CARD = "README.md"
OURS = "<!-- written by tacache plan push -->"  # in a card that the next push may replace

PAGE = """{ours}
# {title}

Plans for TACache (`pip install tacache`): which steps of a sampling run to evaluate, and the
numbers that rebuild the others.

| plan | evaluations | speedup | rule | PSNR | drift | held-out samples |
|---|---|---|---|---|---|---|
{rows}

PSNR and drift are means to full steps over samples that no number was fitted to, as measured when
the plan was fitted; a plan without them was not measured.

{made}

```console
$ tacache plan pull {repo} --evaluations {evaluations} -o {file}
$ tacache generate {model} --plan {file} --prompt "..."
```
"""


class HubError(TACacheError):
    """The hub cannot be reached, or does not have what was asked for."""


def push(plan: Plan, repo: str, name: str, *, private: bool = False) -> tuple[str, bool]:
    """Put a plan into a repository of the hub, in one commit with the card of all its plans.

    Return the commit's address, and whether the card was written: a card that somebody else wrote
    is left alone.
    """
    from huggingface_hub import CommitOperationAdd

    api = _api()
    with _reaching(repo):
        api.create_repo(repo, exist_ok=True, private=private)
        files = _files(api, repo)
        others = {file: _download(api, repo, file) for file in files if file.endswith(SUFFIX)}
        plans = {file: Plan.from_json(text, file) for file, text in others.items()} | {name: plan}
        contents = {name: plan.to_json()}
        if CARD not in files or OURS in _download(api, repo, CARD):
            contents[CARD] = card(repo, plans)
        commit = api.create_commit(
            repo,
            [CommitOperationAdd(path, text.encode()) for path, text in contents.items()],
            commit_message=f"{name}: {plan.evaluations} evaluations of {plan.full_steps} steps",
        )
    return str(commit.commit_url), CARD in contents


def pull(
    repo: str,
    name: str | None = None,
    *,
    evaluations: int | None = None,
    revision: str | None = None,
) -> tuple[str, Plan]:
    """Return a plan of a repository and its file's name; choose by name or budget if several."""
    api = _api()
    with _reaching(repo):
        files = [file for file in _files(api, repo, revision) if file.endswith(SUFFIX)]
        wanted = [file for file in files if name in (None, file, file.removesuffix(SUFFIX))]
        texts = {file: _download(api, repo, file, revision) for file in wanted}
    plans = {file: Plan.from_json(text, f"{repo}/{file}") for file, text in texts.items()}
    chosen = {file: plan for file, plan in plans.items() if evaluations in (None, plan.evaluations)}
    if len(chosen) != 1:
        raise HubError(_which(repo, files, chosen))
    return next(iter(chosen.items()))


def card(repo: str, plans: Mapping[str, Plan]) -> str:
    """Return the page of a repository of plans, from their certificates."""
    from huggingface_hub import ModelCard, ModelCardData

    ordered = sorted(plans.items(), key=lambda item: (item[1].evaluations, item[0]))
    file, first = ordered[0]
    models = [plan.origin.model for _, plan in ordered if _on_hub(plan.origin.model or "")]
    base = models[0] if models else None
    data = ModelCardData(library_name="tacache", base_model=base, tags=["tacache"])
    page = PAGE.format(
        ours=OURS,
        title=repo.rpartition("/")[2],
        rows="\n".join(_row(name, plan) for name, plan in ordered),
        made="\n".join(_made(name, plan) for name, plan in ordered),
        repo=repo,
        evaluations=first.evaluations,
        model=printable(first.origin.model or "MODEL"),
        file=printable(file),
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n{page}"))


def _row(name: str, plan: Plan) -> str:
    cells = [name, f"{plan.evaluations} of {plan.full_steps}", f"{plan.speedup:.2f}x", plan.rule]
    measured = plan.certificate
    if measured is None:
        cells += ["-", "-", "-"]
    else:
        psnr = "-" if measured.psnr is None else f"{measured.psnr:.2f} dB"
        cells += [psnr, f"{measured.drift:.4f}", str(measured.held_out)]
    escaped = [printable(cell).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _made(name: str, plan: Plan) -> str:
    """Return what a plan was made for, and by what."""
    origin = plan.origin
    names = " / ".join(part for part in (origin.model, origin.pipeline, origin.scheduler) if part)
    call = ", ".join(f"{key}={value}" for key, value in sorted((origin.call or {}).items()))
    lines = [f"- `{name}`: {names or 'a velocity function'}" + (f"; {call}" if call else "")]
    if plan.tau_k is not None and plan.tau_d is not None:
        lines.append(f"  tau_k {plan.tau_k:.4g}, tau_d {plan.tau_d:.4g}, max_skip {plan.max_skip}")
    if plan.certificate is not None:
        spent, date = plan.certificate.evaluations_spent, plan.certificate.date
        lines.append(f"  {spent} evaluations were spent on it, {date}")
        nearness = plan.certificate.nearness(plan.evaluations)
        lines += [] if nearness is None else [f"  {nearness}"]
    return "\n".join(map(printable, lines))


def _on_hub(model: str) -> bool:
    """Return whether a name can be a hub id, OWNER/NAME, rather than a folder or anything else."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model, re.ASCII) is not None


def _which(repo: str, files: list[str], chosen: Mapping[str, Plan]) -> str:
    if not files:
        return f"{repo} has no plan: its files would end with {SUFFIX}"
    if not chosen:
        return f"{repo} has no such plan: there are {', '.join(files)}"
    there = ", ".join(f"{file} ({plan.evaluations})" for file, plan in chosen.items())
    return f"{repo} has several plans: give --name or --evaluations for one of {there}"


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="tacache")


def _files(api: Any, repo: str, revision: str | None = None) -> list[str]:
    """List the files of a repository by one request, which is not repeated without an answer."""
    siblings = api.repo_info(repo, revision=revision).siblings or ()
    return [file.rfilename for file in siblings]


def _download(api: Any, repo: str, file: str, revision: str | None = None) -> str:
    path = Path(api.hf_hub_download(repo, file, revision=revision))
    try:
        return read_bounded(path)
    except ValueError as error:
        raise PlanError(f"{repo}/{file} is not a text of ours: {error}") from error


@contextmanager
def _reaching(repo: str) -> Iterator[None]:
    """Turn whatever keeps the hub from answering into one line that says what to do."""
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    unanswered: Any = (*HfHubHTTPError.__bases__, OSError)  # whatever sends the requests
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise HubError("the hub is switched off: unset HF_HUB_OFFLINE") from error
    except LocalTokenNotFoundError as error:
        raise HubError("the hub does not know you: run hf auth login, or set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"the hub has no {repo}, or not for you: check its name and hf auth login"
        ) from error
    except HFValidationError as error:
        raise HubError(f"{repo!r} is not the name of a repository: give OWNER/NAME") from error
    except unanswered as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise HubError(f"cannot reach {repo} on the hub ({reason}): are you online?") from error
