from __future__ import annotations

import pytest

from forebay.cli.failure import WRONG_USE, Failure
from forebay.cli.models import _chosen
from forebay.config import load


def test_a_model_is_pulled_once_however_often_it_is_named():
    settings = load({}, {"HOME": "/home/a"})
    chosen = _chosen(settings, ["small", "default", "scripted"])
    assert [model.id for model in chosen] == ["smollm2-135m-instruct", "scripted"]


def test_an_unknown_model_is_refused_with_those_that_the_list_shows():
    with pytest.raises(Failure) as refused:
        _chosen(load({}, {"HOME": "/home/a"}), ["nope"])
    assert refused.value.exit_code == WRONG_USE
    assert str(refused.value) == (
        "There is no model 'nope'; there are: default, small, smollm2-135m-instruct."
    )
