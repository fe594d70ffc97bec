"""Imports modules of a rendered project, several projects in one process."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def imported(project: Path, module: str) -> ModuleType:
    """`imported(render(), "engine.files")`: that module, in a package of its own for each project.

    A project imports by relative names only, so its package may have any name.
    """
    (package,) = (entry.parent for entry in (project / "src").glob("*/__init__.py"))
    name = f"rendered_{abs(hash(str(package)))}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, package / "__init__.py", submodule_search_locations=[str(package)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return importlib.import_module(f"{name}.{module}")


def catalogue_of(project: Path) -> dict[str, Any]:
    """Every setting of a project, by its key."""
    settings: Any = imported(project, "settings").Settings
    catalogue: dict[str, Any] = imported(project, "engine.settings").catalogue(settings)
    return catalogue
