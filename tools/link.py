"""Links one variant into a folder, to run it in place: `python tools/link.py build/linked
loader=memmap`.

Files with conditions are rendered, so make the links again after an edit of one.
"""

import re
import shutil
import sys
from pathlib import Path

import jinja2
import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "template/project/src/{{ package_name }}"
INCLUDE = re.compile(r"\{% include (.+) %\}\n")
QUESTIONS = yaml.safe_load((ROOT / "copier.yml").read_text(encoding="utf-8"))
ENVIRONMENT = jinja2.Environment(**QUESTIONS["_envops"] | {"undefined": jinja2.StrictUndefined})


def rendered(name: str, answers: dict[str, str]) -> str:
    return jinja2.Template(name).render(answers) if "{" in name else name


def link(folder: Path, **answers: str) -> None:
    """Links one variant into `folder`/src/my_training; questions that `answers` omits are as by
    default."""
    answers = {
        "gpu_family": "any",
        "gpu": "auto",
        **answers,
    }  # their defaults would need the tables
    for name, asked in QUESTIONS.items():
        if (
            "choices" in asked and name not in answers
        ):  # a default may depend on the answers before it
            answers[name] = jinja2.Template(str(asked["default"])).render(answers)
    shutil.rmtree(folder / "src", ignore_errors=True)
    for source_file in [
        path for path in PACKAGE.rglob("*.*") if path.suffix in {".py", ".yml", ".jinja"}
    ]:
        # A name is empty, but for .jinja, where its condition is false.
        names = [rendered(name, answers) for name in source_file.relative_to(PACKAGE).parts]
        if not all(names) or names[-1] == ".jinja":
            continue
        place = folder / "src/my_training" / Path(*names)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source_file.suffix == ".jinja":
            place = place.with_suffix("")
            text = source_file.read_text(encoding="utf-8")
            include = INCLUDE.fullmatch(text)
            if include is None:  # it has conditions
                place.write_text(ENVIRONMENT.from_string(text).render(answers), encoding="utf-8")
                continue
            source_file = ROOT / str(ENVIRONMENT.compile_expression(include[1])(**answers))
        place.symlink_to(source_file)


if __name__ == "__main__":
    link(Path(sys.argv[1]), **dict(argument.split("=", 1) for argument in sys.argv[2:]))
