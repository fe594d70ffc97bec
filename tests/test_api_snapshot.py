"""What other people's projects and scripts rely on: names and values that may be added to, never
taken away.

python tests/test_api_snapshot.py    # writes api_snapshot.json again, after an addition
"""

import ast
import functools
import itertools
import json
import re
from pathlib import Path
from typing import Any

import jinja2
from importing import imported
from rendering import REPOSITORY, questions, render
from variants import PAIRWISE, SCRIPTS, choices, extras, pairwise, structural

KINDS = "paths", "config", "environment", "profiles", "targets", "commands", "script"
DEFAULTS = {name: question.get("default") for name, question in questions().items()}
DEFAULTS |= {"package_name": "my_training", "extras": [], "loader": "memmap"}
SNAPSHOT = Path(__file__).with_suffix(".json").with_name("api_snapshot.json")


@functools.cache
def template_of(name: str) -> jinja2.Template:
    return jinja2.Template(name)


def paths(tree: str, answers: dict[str, Any]) -> set[str]:
    """The files that these answers give, by the names in the template; nothing is rendered."""
    names = DEFAULTS | answers | {"_copier_conf": {"answers_file": ".copier-answers.yml"}}
    files = set()
    for file in (REPOSITORY / "template" / tree).rglob("*"):
        parts = file.relative_to(REPOSITORY / "template" / tree).parts
        path = [template_of(component).render(names) for component in parts]
        is_kept = file.is_file() and all(path) and path[-1] != ".jinja"
        if is_kept and "__pycache__" not in path:
            files.add("/".join(path).removesuffix(".jinja"))
    return files


def current() -> dict[str, Any]:
    """The public names of the template as it stands."""
    names: dict[str, set[str]] = {kind: set() for kind in KINDS}
    # A path depends on two answers at most.
    for answers in pairwise(*structural(), *PAIRWISE):
        names["paths"] |= paths("project", answers)
    names["paths"] |= paths("script", {"workload": SCRIPTS[0]})
    trackers = itertools.cycle(choices("tracker"))
    for workload, tracker in zip(choices("workload"), trackers, strict=False):
        answers = {"workload": workload, "tracker": tracker, "distributed": "ddp"}
        answers |= {"precision": "fp8"} if workload == "llm" else {}
        project = render(**answers, extras=extras(workload))
        config = imported(project, "config")
        names["config"] |= config.SETTINGS.keys()
        names["environment"] |= {*config.ENVIRONMENT, imported(project, "engine.runs").ROOT}
        names["profiles"] |= config.load(project / "config.yaml").profiles.keys()
        makefile = (project / "Makefile").read_text(encoding="utf-8")
        names["targets"] |= set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
        names["commands"] |= {path.stem for path in project.glob("src/*/commands/[a-z]*.py")}
    for workload in SCRIPTS:
        names["script"] |= script_settings(workload)
    asked = {question: sorted(choices(question)) for question in questions()}
    return {"questions": asked, **{kind: sorted(values) for kind, values in names.items()}}


def script_settings(workload: str) -> set[str]:
    """Flags of a script."""
    text = (render(workload=workload, layout="script") / "train.py").read_text(encoding="utf-8")
    names = {"resume", "benchmark", "rounds", "no_optimize"}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and node.name in ("RunSettings", "Settings"):
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            names |= {ast.unparse(field.target) for field in fields}
    return names


def flat(content: Any, prefix: str = "") -> set[str]:
    """`{"questions": {"gpu": ["v100"]}}` → `{"questions: gpu", "questions: gpu: v100"}`."""
    if isinstance(content, dict):
        nested = [
            flat(value, f"{prefix}{key}: ") | {f"{prefix}{key}"} for key, value in content.items()
        ]
        return set().union(*nested)
    return {f"{prefix}{value}" for value in content}


def test_nothing_public_was_taken_away_or_left_out():
    committed = flat(json.loads(SNAPSHOT.read_text(encoding="utf-8")))
    now = flat(current())
    removed = sorted(committed - now)
    assert not removed, f"projects in the field rely on these; they stay: {removed}"
    added = sorted(now - committed)
    assert not added, f"new; commit them with `python tests/{Path(__file__).name}`: {added}"


def dump(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SNAPSHOT.write_text(dump(current()), encoding="utf-8")
    print(f"wrote {SNAPSHOT.relative_to(REPOSITORY)}; what it lost is in `git diff`")
