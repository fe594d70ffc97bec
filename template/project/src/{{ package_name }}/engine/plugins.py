"""Finds the modules of `commands/` and `hooks/`; a file in these folders needs no other entry."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

PACKAGE = __name__.partition(".")[0]


def names(folder: str) -> list[str]:
    """Return the name of every module in a folder of this package, such as `hooks`."""
    path = import_module(f"{PACKAGE}.{folder}").__path__
    return sorted(module.name for module in iter_modules(path) if module.name[0] != "_")


def discover(folder: str, attribute: str) -> list[ModuleType]:
    """Import a folder's modules; return those that have an attribute, such as the class `Hook`."""
    modules = [import_module(f"{PACKAGE}.{folder}.{name}") for name in names(folder)]
    return [module for module in modules if attribute in vars(module)]
