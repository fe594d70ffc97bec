"""What other people's projects and scripts rely on: names and values that may be added to, never
taken away.

    python tools/api_snapshot.py    # writes tests/rendering/api_snapshot.json, after an addition
"""

import dataclasses
import itertools
import json
import re
import runpy
from typing import Any

from importing import catalogue_of, imported
from rendering import REPOSITORY, questions, render
from variants import PAIRWISE, SCRIPTS, choices, extras, pairwise, structural

KINDS = "paths", "config", "environment", "profiles", "targets", "commands", "script"
SNAPSHOT = REPOSITORY / "tests/rendering/api_snapshot.json"


def current() -> dict[str, Any]:
    """The public names of the template as it stands."""
    names: dict[str, set[str]] = {kind: set() for kind in KINDS}
    # A path depends on two answers at most.
    script = {"workload": SCRIPTS[0], "layout": "script"}
    for answers in (*pairwise(*structural(), *PAIRWISE), script):
        project = render(**answers)
        files = {path.relative_to(project) for path in project.rglob("*") if path.is_file()}
        names["paths"] |= {str(path) for path in files if "__pycache__" not in path.parts}
    trackers = itertools.cycle(choices("tracker"))
    for workload, tracker in zip(choices("workload"), trackers, strict=False):
        answers = {"workload": workload, "tracker": tracker, "distributed": "ddp"}
        answers |= {"precision": "fp8"} if workload == "llm" else {}
        project = render(**answers, extras=extras(workload))
        settings = imported(project, "settings").Settings.load(project / "config.yaml")
        names["config"] |= catalogue_of(project).keys()
        variables = imported(project, "engine.sources").ENVIRONMENT
        names["environment"] |= {*variables, imported(project, "engine.runs").ROOT}
        names["profiles"] |= settings.profiles.keys()
        makefile = (project / "Makefile").read_text(encoding="utf-8")
        names["targets"] |= set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
        names["commands"] |= {path.stem for path in project.glob("src/*/commands/[a-z]*.py")}
    for workload in SCRIPTS:
        names["script"] |= script_settings(workload)
    asked = {question: sorted(choices(question)) for question in questions()}
    return {"questions": asked, **{kind: sorted(values) for kind, values in names.items()}}


def script_settings(workload: str) -> set[str]:
    """Flags of a script."""
    module = runpy.run_path(str(render(workload=workload, layout="script") / "train.py"))
    fields = dataclasses.fields(module["Settings"])
    return {"resume", "benchmark", "rounds", "no_optimize", *(field.name for field in fields)}


def flat(content: Any, prefix: str = "") -> set[str]:
    """`{"questions": {"gpu": ["v100"]}}` → `{"questions: gpu", "questions: gpu: v100"}`."""
    if isinstance(content, dict):
        nested = [
            flat(value, f"{prefix}{key}: ") | {f"{prefix}{key}"} for key, value in content.items()
        ]
        return set().union(*nested)
    return {f"{prefix}{value}" for value in content}


if __name__ == "__main__":
    text = json.dumps(current(), indent=1, ensure_ascii=False)
    SNAPSHOT.write_text(f"{text}\n", encoding="utf-8")
    print(f"wrote {SNAPSHOT.relative_to(REPOSITORY)}; what it lost is in `git diff`")
