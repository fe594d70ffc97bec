"""Names and values that other people's projects rely on: see tools/api_snapshot.py."""

import json

from api_snapshot import SNAPSHOT, current, flat


def test_nothing_public_was_taken_away_or_left_out():
    committed = flat(json.loads(SNAPSHOT.read_text(encoding="utf-8")))
    now = flat(current())
    removed = sorted(committed - now)
    assert not removed, f"projects in the field rely on these; they stay: {removed}"
    added = sorted(now - committed)
    assert not added, f"new; add them with `python tools/api_snapshot.py`: {added}"
