"""What other people's projects and scripts rely on: names and values that may be added to, never taken away.

python tests/test_api_snapshot.py    # writes api_snapshot.json anew, after something was added
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from importing import imported
from rendering import REPOSITORY, questions, render
from variants import PAIRWISE, SCRIPTS, choices, pairwise, products, scripts, structural

SNAPSHOT = Path(__file__).with_suffix(".json").with_name("api_snapshot.json")


def current() -> dict[str, Any]:
    """The public names of the template as it stands."""
    paths: set[str] = set()
    for answers in (
        *pairwise(*structural(), *PAIRWISE),
        *scripts(),
    ):  # a path depends on two answers at most
        project = render(**answers)
        found = [
            path
            for path in project.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]
        paths.update(path.relative_to(project).as_posix() for path in found)
    names: dict[str, set[str]] = {"config": set(), "environment": set(), "aliases": set()}
    profiles: set[str] = set()
    targets: set[str] = set()
    verbs: set[str] = set()
    for answers in [*products("workload"), *products("tracker"), *products("distributed")]:
        project = render(**answers, extras=list(choices("extras")))
        config = imported(project, "config")
        names["config"] |= config.SETTINGS.keys()
        names["environment"] |= {*config.ENVIRONMENT, imported(project, "__main__").ROOT}
        names["aliases"] |= {*config.ALIASES, *config.OBSOLETE}
        profiles |= set(
            yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))["profiles"]
        )
        makefile = (project / "Makefile").read_text(encoding="utf-8")
        targets |= set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
        verbs |= {path.stem for path in project.glob("src/*/commands/[a-z]*.py")}
    return {
        "questions": {question: sorted(choices(question)) for question in questions()},
        "paths": sorted(paths),
        **{kind: sorted(found) for kind, found in names.items()},
        "profiles": sorted(profiles),
        "targets": sorted(targets),
        "verbs": sorted(verbs),
        "script": sorted(set().union(*map(script_settings, SCRIPTS))),
    }


def script_settings(workload: str) -> set[str]:
    """Flags of a script, and the names that it takes from the environment."""
    tree = ast.parse(
        (render(workload=workload, layout="script") / "train.py").read_text(encoding="utf-8")
    )
    (settings,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Settings")
    flags = {each.target.id for each in settings.body if isinstance(each, ast.AnnAssign)}  # type: ignore[union-attr]
    return flags | {"resume"}


def flat(content: Any, prefix: str = "") -> set[str]:
    """`{"questions": {"gpu": ["v100"]}}` → `{"questions: gpu", "questions: gpu: v100"}`."""
    if isinstance(content, dict):
        nested = [
            flat(value, f"{prefix}{key}: ") | {f"{prefix}{key}"} for key, value in content.items()
        ]
        return set().union(*nested)
    return {f"{prefix}{value}" for value in content}


def test_nothing_public_was_taken_away_or_left_out() -> None:
    committed = flat(json.loads(SNAPSHOT.read_text(encoding="utf-8")))
    now = flat(current())
    removed = sorted(committed - now)
    assert not removed, f"projects in the field rely on these; they stay: {removed}"
    added = sorted(now - committed)
    assert not added, f"new; commit them with `python tests/{Path(__file__).name}`: {added}"


def test_committed_snapshot_is_as_it_is_written() -> None:
    text = SNAPSHOT.read_text(encoding="utf-8")
    assert text == dump(json.loads(text))


def dump(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if SNAPSHOT.exists() and (
        gone := flat(json.loads(SNAPSHOT.read_text(encoding="utf-8"))) - flat(current())
    ):
        sys.exit(f"these were public and stay: {sorted(gone)}")
    SNAPSHOT.write_text(dump(current()), encoding="utf-8")
    print(f"wrote {SNAPSHOT.relative_to(REPOSITORY)}")
