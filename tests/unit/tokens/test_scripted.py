from __future__ import annotations

from forebay.core.call import Message
from forebay.testing.clock import CountingIds
from forebay.tokens.scripted import END_OF_TEXT, IM_END, IM_START, scripted_tokens


def test_each_byte_is_the_token_of_its_number() -> None:
    tokens = scripted_tokens(CountingIds())
    text = "".join(map(chr, range(0x250))) + "漢😀"
    assert tokens.encode([text]) == [tuple(text.encode())]
    assert tokens.table[:256] == tuple(bytes([byte]) for byte in range(256))
    assert (IM_START, IM_END, END_OF_TEXT, tokens.vocabulary_size) == (256, 257, 258, 259)
    assert tokens.eos_ids == (257,)


def test_a_dialogue_is_chatml() -> None:
    tokens = scripted_tokens(CountingIds())
    assert tokens.pieces([Message("system", "s"), Message("user", "u")]) == [
        *(256, "system\ns", 257, "\n", 256, "user\nu", 257, "\n", 256, "assistant\n")
    ]
    assert tokens.pieces([Message("user", "u")])[:3] == [
        *(256, "system\nYou are a helpful AI assistant.", 257)
    ]
