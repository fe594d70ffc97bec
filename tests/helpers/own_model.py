"""The model that docs/how-to/own-model.md shows, in a project."""

import re
import shutil
from pathlib import Path

from rendering import REPOSITORY, render

SHORT = ("train", "--training.max_steps", "40", "--schedule.warmup_steps", "5")
PAGE = (REPOSITORY / "docs/how-to/own-model.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def project_with(folder: Path, model: str) -> Path:
    project = shutil.copytree(render(workload="tabular"), folder / "project")
    (project / "src/my_training/model.py").write_text(model, encoding="utf-8")
    return project
