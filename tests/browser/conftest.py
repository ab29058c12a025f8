"""The studio, the demo's page and the site as people use them: real Chromium looks at them."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = Path(os.environ.get("CHROMIUM") or "/usr/bin/chromium")
SHOTS = Path(__file__).parents[2] / "build" / "browser"
WAIT = 60_000  # milliseconds for anything on a busy machine


@contextmanager
def opened(home, *arguments):
    """The address of a studio that runs in a process of its own."""
    command = [sys.executable, "-m", "tacache", "studio", *arguments, "--port", "0"]
    environment = {**os.environ, "TACACHE_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://[\w.:]+/", line)
        assert found, f"the studio did not open: {line!r}"
        yield found[0]
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("gradio")
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"there is no Chromium at {CHROMIUM}: make test-browser installs it")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def pictures(browser, tmp_path_factory):
    """A studio with pictures."""
    with opened(tmp_path_factory.mktemp("home")) as address:
        yield address


@pytest.fixture(scope="session")
def clips(browser, tmp_path_factory):
    """A studio with clips of few steps, each of which takes a while."""
    with opened(tmp_path_factory.mktemp("home"), "tiny-wan", "--steps", "10") as address:
        yield address


@pytest.fixture(scope="session")
def turbo(browser, tmp_path_factory):
    """A studio with pictures of eight steps."""
    with opened(tmp_path_factory.mktemp("home"), "tiny-flux-turbo") as address:
        yield address


@pytest.fixture
def open_page(browser):
    """Open pages, each of another person; nothing may come from elsewhere or go wrong on them."""
    contexts, wrong = [], []

    def go(address, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        local = (address, "data:", "blob:")
        page.on("request", lambda one: one.url.startswith(local) or wrong.append(one.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda one: one.type == "error" and wrong.append(one.text))
        page.goto(address)
        return page

    yield go
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def visit(open_page):
    """Open the studio, and wait until it says what is measured."""

    def go(address, **options):
        page = open_page(address, **options)
        page.locator("#meaning .strip").wait_for()
        return page

    return go
