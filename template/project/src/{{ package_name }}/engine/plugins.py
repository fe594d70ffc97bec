"""Discovers commands, hooks and optional modules by the names that their files define.

Files are parsed, not imported: an import could load torch, which takes seconds.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from symtable import symtable
from types import ModuleType

PACKAGE = Path(__file__).parents[1]


@cache
def discover(folder: str, name: str) -> list[ModuleType]:
    """Return the modules of a folder that define `name`, in the order of their file names.

    Only these modules are imported. Example: `discover("hooks", "Hook")`.
    """
    modules = []
    for file in sorted((PACKAGE / folder).glob("[!_]*.py")):
        source = file.read_text(encoding="utf-8")
        if name in source and name in definitions(source):
            modules.append(import_module(f"..{folder.replace('/', '.')}.{file.stem}", __package__))
    return modules


def definitions(source: str) -> set[str]:
    """Return the names of classes, functions and variables at the top level of a module."""
    symbols = symtable(source, "", "exec").get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
