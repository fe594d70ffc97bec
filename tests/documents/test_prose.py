"""What people read has the field's words and sentences that one breath can hold."""

import prose
from rendering import REPOSITORY


def test_words_and_sentences():
    places = []
    unused = dict(prose.RULES["allowed"])
    for path in prose.files():
        name = str(path.relative_to(REPOSITORY))
        lines = prose.problems(path)
        allowed = unused.pop(name, 0)
        if len(lines) > allowed:
            places += lines
        assert len(lines) >= allowed, f"tools/prose.yml: lower the number of {name} to {len(lines)}"
    assert places == [], "\n".join(places)
    assert unused == {}, "tools/prose.yml: no such files"
