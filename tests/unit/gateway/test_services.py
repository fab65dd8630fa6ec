from __future__ import annotations

from dataclasses import fields, replace

import pytest

from forebay.gateway import GatewaySettings, Readiness


def test_every_setting_has_a_help_sentence():
    for setting in fields(GatewaySettings):
        assert setting.metadata["help"].endswith(".")


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_setting_that_makes_no_sense_is_refused(value):
    with pytest.raises(ValueError, match="body_seconds"):
        replace(GatewaySettings(), body_seconds=value)


def test_readiness_is_having_no_reason_against_it():
    assert Readiness().ready
    assert not Readiness(("x",)).ready
