"""The tables of models say what their data, the classes and the library say."""

import re

import diffusers
import pytest
from tests.docs import models
from tests.docs.readme import README
from tests.tiny import prompted

from tacache.instant import default_evaluations

CATALOGUE = models.catalogue()
RENEW = "python -m tests.docs.models renews it"


def test_the_page_has_the_table_of_the_data():
    shown = models.TABLE.search(models.PAGE.read_text(encoding="utf-8"))
    assert shown
    assert shown[0] == models.table(), RENEW
    assert shown[0].count("\n") == len(CATALOGUE) + 2


def test_readme_has_the_ten_models_most_people_run():
    assert sum(entry.readme for entry in CATALOGUE) == 10
    shown = models.TABLE.search(README.read_text(encoding="utf-8"))
    if shown is None:
        pytest.skip("README has no <!-- models: begin --> yet")
    assert shown[0] == models.short_table(), RENEW


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.model)
def test_a_model_has_a_pipeline_of_diffusers(entry):
    kind = getattr(diffusers, entry.pipeline)
    assert issubclass(kind, diffusers.DiffusionPipeline | diffusers.ModularPipeline)
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.hub)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.model)
def test_the_data_has_only_what_the_class_does_not_say(entry):
    own = models.defaults(entry.pipeline)
    assert entry.steps is None or entry.steps != own.steps
    assert entry.guidance is None or entry.guidance != own.guidance


def test_every_model_stands_once():
    assert len({entry.model for entry in CATALOGUE}) == len(CATALOGUE)
    assert len({entry.hub for entry in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize(
    ("model", "cells"),
    [
        ("FLUX.1-dev", ("28", "3.5", "1", f"{default_evaluations(28)}", "2.2x", "tiny, full size")),
        ("Krea 2 Turbo", ("8", "none", "1", f"{default_evaluations(8)}", "1.3x")),
        ("Qwen-Image", ("50", "4", "2", f"{default_evaluations(50)}", "3.8x", "tiny, full size")),
        ("FLUX.3 Image Klein Base", ("50", "3.5", "2", f"{default_evaluations(50)}", "3.8x")),
        ("Qwen-Image-2.1 Turbo", ("8", "none", "1", f"{default_evaluations(8)}", "1.3x")),
        ("Sana Sprint", ("2", "4.5", "1", "-", "-", "refused")),
        ("Kandinsky 6 Pro", ("50", "5", "2", f"{default_evaluations(50)}", "3.8x", "tiny")),
        ("Kandinsky 6 Pro, distilled", ("16", "none", "1", "-", "-", "refused")),
    ],
)
def test_a_line_of_each_kind(model, cells):
    (entry,) = (entry for entry in CATALOGUE if entry.model == model)
    assert models.row(entry).split(" | ")[2 : 2 + len(cells)] == list(cells)


def test_full_size_names_models_that_were_timed():
    named = {entry.full_size for entry in CATALOGUE} - {None}
    assert named
    assert named <= models.tried_large()
    assert all(models.tried_tiny()[entry.pipeline] for entry in CATALOGUE if entry.full_size)


def test_pipelines_of_recipes_are_of_the_classes_they_stand_for():
    for name, build in prompted.PIPELINES.items():
        assert type(build()) is getattr(diffusers, name)
