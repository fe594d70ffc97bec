"""A training that is only measured, for `benchmark`, `profile` and `tune`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ..assemble import build_project
from ..engine.compute.distributed import Distributed
from ..engine.training.session import Session

if TYPE_CHECKING:
    from ..engine.training.run import Run
    from ..settings import Settings


@contextmanager
def trial(
    settings: Settings, folder: Path | None = None, loader_class: Any = None
) -> Iterator[Run]:
    """Yield a new training, for `take_step` or `train`; it evaluates, saves and prints nothing.

    folder: for its metrics; by default a temporary one. loader_class: replaces the project's.
    """
    settings = settings.replaced({"monitor.progress": False}, "trial")
    with closing(Distributed()) as distributed, TemporaryDirectory() as temporary:
        folder = folder or Path(temporary)
        with Session(folder, settings, distributed, trial=True) as session:
            session.signals.restore()  # a signal ends a trial at once: it has nothing to save
            project = build_project(folder, settings, distributed)
            project.loader_class = loader_class or project.loader_class
            with redirect_stdout(StringIO()):
                run = session.start(project)
            yield run
