"""Model and data keep to their contract: also what would be wrong silently, as a forgotten mask or a leak."""

from __future__ import annotations

from collections.abc import Callable

from conftest import ROOT


def test_model_and_data_keep_to_their_contract(run: Callable[..., str]) -> None:
    run("check", "--config", str(ROOT / "config.yaml"), "--samples", "256")
