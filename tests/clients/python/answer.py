"""What structured output is asked for. Its values are enumerated, so that the smallest model ends."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class Answer(BaseModel):
    """The capital of a country."""

    capital: Literal["Paris", "Rome", "Tokyo"]
    sure: bool
