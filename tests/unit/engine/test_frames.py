"""Frames: what they may carry, and that they survive any way of being cut."""

from __future__ import annotations

import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.delta import EngineLimits, EngineRequest, FinishReason
from forebay.core.job import Sampling
from forebay.engine.frames import (
    MAX_FRAME_BYTES,
    Cancel,
    ChannelClosed,
    ChildChannel,
    Fault,
    FrameBuffer,
    FrameError,
    Output,
    Ready,
    Start,
    Step,
    Submit,
    pack,
    parse_for_child,
    parse_for_parent,
)
from forebay.engine.settings import EngineSettings, ScriptedSettings

SUBMIT = Submit(7, "req_1", 1, (1, 2, 49_151), 12, 0.2, 0.9, None, 2**63 - 1, False)
TO_CHILD = [
    Start("/weights.gguf", EngineSettings(), ScriptedSettings(freeze_after_steps=3), True),
    Start("", EngineSettings(prefix_cache="off"), None, False),
    SUBMIT,
    Cancel(7),
]
TO_PARENT = [
    Ready(EngineLimits(32, 65_536, 32, 8_192, False)),
    Step([], 0.0, 0),
    Step([Output(7, 0, (1, 2)), Output(8, 3, (), FinishReason.STOP, 3, 0)], 0.5, 10),
    Step([Output(9, 3, fault="out of KV memory")], 1.0, 10),
    Fault("no such file"),
]


def test_every_frame_arrives_as_it_was_sent() -> None:
    assert [parse_for_child(pack(frame)[4:]) for frame in TO_CHILD] == TO_CHILD
    assert [parse_for_parent(pack(frame)[4:]) for frame in TO_PARENT] == TO_PARENT


@pytest.mark.parametrize("made", [-1, 2**48])
def test_a_count_that_no_engine_has_is_no_frame(made: int) -> None:
    with pytest.raises(FrameError):
        parse_for_parent(pack(Step([], 0.0, made))[4:])


def test_what_reaches_an_engine_about_a_call_is_an_allow_list() -> None:
    """E7: a new field of a request or its sampling reaches no engine until it is added here."""
    assert set(Submit.__struct_fields__) == {
        *("sequence", "request_id", "choice", "prompt_ids", "max_tokens"),
        *("temperature", "top_p", "top_k", "seed", "ignore_eos", "logprobs", "json_schema"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    }
    assert set(EngineRequest.__slots__) == {
        *("id", "prompt_ids", "max_tokens", "sampling", "choices", "cache_salt"),
    }
    assert set(Sampling.__slots__) == {
        *("temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", "logprobs"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "json_schema"),
    }


@given(st.lists(st.sampled_from(TO_PARENT), max_size=6), st.lists(st.integers(1, 40)))
def test_frames_are_found_however_the_bytes_are_cut(frames: list[object], cuts: list[int]) -> None:
    data = b"".join(pack(frame) for frame in frames)  # type: ignore[arg-type]
    buffer = FrameBuffer()
    found = []
    for size in [*cuts, len(data)]:
        found += buffer.feed(data[:size])
        data = data[size:]
    assert [parse_for_parent(body) for body in found] == frames


def test_a_frame_that_is_too_long_is_refused_by_its_header_alone() -> None:
    header = (MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(FrameError, match="larger than"):
        FrameBuffer().feed(header)
    with pytest.raises(FrameError, match="larger than"):
        pack(Fault("x" * (MAX_FRAME_BYTES + 1)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["submit", 1]),
        msgspec.msgpack.encode(["cancel", "seven"]),
        msgspec.msgpack.encode(["shutdown"]),
        msgspec.msgpack.encode({"type": "cancel", "sequence": 7}),
    ],
)
def test_nonsense_is_an_error_of_ours(body: bytes) -> None:
    with pytest.raises(FrameError):
        parse_for_child(body)
    with pytest.raises(FrameError):
        parse_for_parent(body)


def test_the_child_takes_all_that_has_arrived_and_does_not_wait_for_more() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = ChildChannel(theirs)
        assert channel.receive(0.0) == []
        ours.sendall(pack(SUBMIT) + pack(Cancel(1)) + pack(Cancel(2))[:3])
        assert channel.receive(None) == [SUBMIT, Cancel(1)]
        ours.sendall(pack(Cancel(2))[3:])
        assert channel.receive(0.0) == [Cancel(2)]
        channel.send(TO_PARENT[0])
        assert FrameBuffer().feed(ours.recv(65_536)) == [pack(TO_PARENT[0])[4:]]


def test_the_child_learns_that_its_parent_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = ChildChannel(theirs)
        ours.sendall(pack(SUBMIT))
        ours.close()
        with pytest.raises(ChannelClosed):
            channel.receive(None)
        with pytest.raises(ChannelClosed):
            channel.send(TO_PARENT[0])
