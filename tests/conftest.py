"""One folder of rendered projects for all processes of a test session; failures are shown as they
happen."""

import getpass
import os
import shutil
import signal
import tempfile
import zlib

import pytest
from tiers import sort_out

# As in rendering.py, which is not imported here: it needs Copier, and tests/gpu does without.
RENDERS = "FASTTRAIN_RENDERS"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # this is the process that writes to the terminal
        config.pluginmanager.register(Terminal(config))
    if RENDERS not in os.environ:  # workers find it there
        os.environ[RENDERS] = tempfile.mkdtemp(prefix="fasttrain-renders-")
        config.stash[FOLDER] = os.environ[RENDERS]
    if config.option.markexpr != "gpu":  # results are a CPU's, and a fork cannot use CUDA again
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # PyTorch's own default, so that all tests share what is compiled.
    compiled = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", compiled)
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored in what a shell or nohup starts aside
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # tests send them to what they start
    os.environ["TRAINING_ROOT"] = "."  # a shared project's commands work in each test's own folder


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(FOLDER, None)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop(RENDERS, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", help="2/3: the second third of the tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sort_out(items)
    number, shards = map(int, config.getoption("shard").split("/"))
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % shards == number - 1]


FOLDER = pytest.StashKey[str]()


class Terminal:
    """Failures at once, for whoever reads what is left of a suite that was ended; then a table of
    faults."""

    def __init__(self, config: pytest.Config) -> None:
        self.plugins = config.pluginmanager
        self.families: dict[str, tuple[int, int, int]] = {}  # of faults: died, tried, there

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "call" else ():
            if name == "family":
                family, size = value
                died, tried, _ = self.families.get(family, (0, 0, 0))
                self.families[family] = died + report.passed, tried + 1, size
        if report.failed:
            terminal = self.plugins.getplugin("terminalreporter")
            terminal.write_line(f"\n{report.nodeid}, {report.when}\n{report.longreprtext}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.families:
            terminalreporter.section("faults: died of tried, of all there are")
        for family, (died, tried, size) in self.families.items():
            terminalreporter.write_line(f"{family:32}{died:3} of {tried:2}, of {size:2}")
