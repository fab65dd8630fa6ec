from __future__ import annotations

import errno
import importlib

import pytest

from forebay.catalog.download import DamagedDownload
from forebay.cli.failure import EXPECTED, IT_FAILED, WRONG_USE, Failure, explain
from forebay.config import ConfigError
from forebay.core.errors import EngineFault, InvalidRequest, StoreUnavailable
from forebay.gateway.serve import PortUnavailable


@pytest.mark.parametrize("name", EXPECTED)
def test_every_expected_failure_is_an_exception_of_that_name(name):
    module, _, kind = name.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), kind), Exception)


@pytest.mark.parametrize(
    ("fault", "exit_code"),
    [
        (ConfigError(["port: not a number"]), WRONG_USE),
        (PortUnavailable("Port 1 is taken"), WRONG_USE),
        (InvalidRequest("There is no plan"), WRONG_USE),
        (StoreUnavailable("ledger.db is damaged"), IT_FAILED),
        (EngineFault("the engine cannot start"), IT_FAILED),
        (DamagedDownload("it arrived damaged"), IT_FAILED),
        (Failure("no server", 1), IT_FAILED),
    ],
)
def test_the_nearest_expected_class_decides_the_exit_code(fault, exit_code):
    failure = explain(fault)
    assert failure is not None
    assert failure.exit_code == exit_code
    assert str(failure) == str(fault)


def test_an_error_of_the_system_names_the_file():
    fault = PermissionError(errno.EACCES, "Permission denied", "/srv/data")
    failure = explain(fault)
    assert str(failure) == "/srv/data: Permission denied"


def test_a_bug_is_not_explained_away():
    assert explain(KeyError("x")) is None
    assert explain(KeyboardInterrupt()) is None
