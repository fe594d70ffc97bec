"""Each fault of `faults.yml` in a copy of the template: the test that it names must fail there.

A suite that stays green over a broken engine protects nobody. The tests run in a fork of this
process, where torch is loaded, with `FASTTRAIN_TEMPLATE` pointing at the copy.
"""

import contextlib
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import h5py  # noqa: F401 - these are loaded once, for all forks
import hypothesis.strategies
import pytest
import running  # noqa: F401
import safetensors.torch  # noqa: F401
from faults import FAMILIES
from quick_copier import COMPILED
from rendering import REPOSITORY, copy_template

TESTS = REPOSITORY / "tests"
TOOLS = REPOSITORY / "tools"
# One failing example is enough: no shorter one is looked for.
hypothesis.settings.register_profile(
    "fault", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)
SECONDS = 300  # until a test that hangs is killed, with the processes that it started


def edited(fault, template):
    """Return the file of a fault, and its text with the fault in it.

    Raises LookupError where the fault has no place.
    """
    (package,) = (template / "project/src").iterdir()
    places = (template / fault.file, package / fault.file, package / f"{fault.file}.jinja")
    paths = [path for path in places if path.is_file()]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    if [text.count(fault.old) for text in texts] != [1]:
        raise LookupError(f"{fault.file} does not have {fault.old!r} once: update '{fault.name}'")
    text = texts[0].replace(fault.old, fault.new)
    if not fault.file.endswith(".jinja"):
        compile(text, fault.file, "exec")  # a fault that does not parse would prove nothing
    return paths[0], text


def faulty(fault, folder):
    """Copy the template with the fault in it."""
    path, text = edited(fault, copy_template(folder) / "template")
    path.write_text(text, encoding="utf-8")
    return folder


def outcome(test, template, folder):
    """Exit code and output of pytest over one test of `template`; a negative code where it hung."""
    log = folder / "output"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.setpgid(0, 0)
            code = run_test(test, template, folder, log)
        finally:
            os._exit(code)
    deadline = time.monotonic() + SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):  # what a failed test left running
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), log.read_text()


def node_id(test):
    """Of a test that is named with its file alone: no two files of tests have one name."""
    file, _, case = test.partition("::")
    (path,) = TESTS.rglob(file)
    return f"{path}::{case}"


def run_test(test, template, folder, log):
    gc.freeze()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.environ["FASTTRAIN_TEMPLATE"] = str(template)
    os.environ.update(FASTTRAIN_PATIENCE="20", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    tempfile.tempdir = str(folder)
    hypothesis.settings.load_profile("fault")
    # What is loaded so far comes from the true template.
    for name, module in list(sys.modules.items()):
        folders = Path(getattr(module, "__file__", None) or "/").parents
        if name.startswith("rendered_") or TESTS in folders or TOOLS in folders:
            del sys.modules[name]
    importlib.import_module("quick_copier").COMPILED.update(COMPILED)
    options = ["-xq", "--tb=line", "--assert=plain", "-p", "no:cacheprovider"]
    options += [f"--rootdir={REPOSITORY}", f"--basetemp={folder / 'pytest'}"]
    return int(pytest.main([*options, node_id(test)]))


# Of each family `make test` tries one: these, whose tests take least, else the first.
QUICK = (
    "one learning rate for all groups",
    "a loss that begins above the baseline is an alert",
    "Lightning weighs micro-batches alike",
    "an error line shows a password",
    "checkpoints are believed unread",
    "a divisor of one rank's targets",
    "edges lead into the next day of a batch",
    "a script saves for a signal and ends for a later one",
    "a weaker source wins",
)
CASES = [
    (family, fault)
    for family, faults in FAMILIES.items()
    for fault in sorted(faults, key=lambda fault: fault.name not in QUICK)
]


def test_every_fault_has_its_place():
    for _, fault in CASES:
        edited(fault, REPOSITORY / "template")


@pytest.mark.cover(1, "family")
@pytest.mark.parametrize(
    ("family", "fault"), CASES, ids=lambda part: getattr(part, "name", part).replace(" ", "-")
)
def test_the_suite_notices(family, fault, tmp_path, record_property):
    record_property("family", (family, len(FAMILIES[family])))
    template = faulty(fault, tmp_path / "template")
    code, output = outcome(fault.test, template, tmp_path)
    assert code == pytest.ExitCode.TESTS_FAILED, output[-3000:]
    shutil.rmtree(tmp_path)


def test_without_a_fault_a_test_passes_in_the_same_way(tmp_path):
    """Else every fault would seem to be noticed."""
    template = copy_template(tmp_path / "template")
    code, output = outcome(CASES[0][1].test, template, tmp_path)
    assert code == pytest.ExitCode.OK, output[-3000:]
