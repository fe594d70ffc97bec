"""One folder of rendered projects for all processes of a test session; failures are shown as they happen."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

# As in rendering.py, which is not imported here: it needs Copier, and tests/gpu does without.
RENDERS = "FASTTRAIN_RENDERS"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # this is the process that writes to the terminal
        config.pluginmanager.register(FailuresAtOnce(config))
    if RENDERS not in os.environ:  # workers find it there
        config.stash[FOLDER] = os.environ[RENDERS] = tempfile.mkdtemp(prefix="fasttrain-renders-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(FOLDER, None):
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop(RENDERS, None)


FOLDER = pytest.StashKey[str]()


class FailuresAtOnce:
    """Whoever watches the suite, or reads what is left of one that was ended, need not wait for them."""

    def __init__(self, config: pytest.Config) -> None:
        self.plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            terminal = self.plugins.getplugin("terminalreporter")
            terminal.write_line(f"\n{report.nodeid}, {report.when}\n{report.longreprtext}")
