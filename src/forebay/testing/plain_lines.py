"""Lines of batches for worlds without a gateway: `{"id": …, "prompt": …, "max": …}`.

Not here: those of the API (`forebay.gateway.batch_lines`).
"""

from __future__ import annotations

import msgspec

from forebay.core.batch import BatchState, LineError, Place
from forebay.core.call import Call, Message, SamplingWish
from forebay.core.errors import ForebayError
from forebay.core.event import Admitted
from forebay.core.job import Lane
from forebay.core.principal import Principal
from forebay.core.usage import Usage
from forebay.pipeline.batch_lines import LineRefused, ReadLine
from forebay.pipeline.kept_answer import KeptChoice


class Asked(msgspec.Struct):
    """What a line asks."""

    id: str
    prompt: str
    max: int | None = None
    seed: int | None = None


class Told(msgspec.Struct):
    """A line of an output or error file."""

    id: str
    call_id: str
    text: str = ""
    output_tokens: int = 0
    fault: str = ""
    unrun: str = ""


class _Answer(msgspec.Struct, array_like=True):
    usage: Usage
    choices: list[KeptChoice]


class PlainLines:
    """A LineFormat for one model."""

    endpoints = ("/plain",)
    most_line_bytes = 4096

    def __init__(self, model: str) -> None:
        self._model = model

    def read(self, content: bytes, place: Place, endpoint: str, principal: Principal) -> ReadLine:
        try:
            asked = msgspec.json.decode(content, type=Asked)
        except msgspec.DecodeError as fault:
            raise LineRefused(LineError("invalid_json_line", str(fault))) from None
        call = Call(
            id=place.call_id,
            principal=principal,
            model=self._model,
            lane=Lane.BATCH,
            streamed=False,
            messages=(Message("user", asked.prompt),),
            max_output_tokens=asked.max,
            sampling=SamplingWish(temperature=0.7, seed=asked.seed),
            background=True,
            place=place,
        )
        return ReadLine(asked.id, call, asked)

    def custom_id(self, content: bytes) -> str:
        return msgspec.json.decode(content, type=Asked).id

    def answer(self, line: ReadLine, head: Admitted, kept: bytes) -> bytes:
        answer = msgspec.msgpack.decode(kept, type=_Answer)
        text, tokens = answer.choices[0].text, answer.usage.output_tokens
        return _line(Told(line.custom_id, line.call.id, text, tokens))

    def fault(self, error: ForebayError) -> bytes:
        return type(error).__name__.encode()

    def faulty(self, custom_id: str, place: Place, why: bytes) -> bytes:
        return _line(Told(custom_id, place.call_id, fault=why.decode()))

    def unrun(self, custom_id: str, place: Place, ended: BatchState) -> bytes:
        return _line(Told(custom_id, place.call_id, unrun=ended.value))


def _line(told: Told) -> bytes:
    return msgspec.json.encode(told) + b"\n"
