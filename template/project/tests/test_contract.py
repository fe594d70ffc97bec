"""Test the contract of model and data. It finds silent errors, such as a missing mask or a leak."""

from __future__ import annotations

from collections.abc import Callable

from conftest import ROOT


def test_model_and_data_keep_to_their_contract(run: Callable[..., str]) -> None:
    run("check", "--config", str(ROOT / "config.yaml"), "--samples", "256")
