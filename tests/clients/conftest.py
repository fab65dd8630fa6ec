"""The server that the clients talk to is the one of the end-to-end tests."""

from tests.e2e.conftest import home, real

__all__ = ["home", "real"]
