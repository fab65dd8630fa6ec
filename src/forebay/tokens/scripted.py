"""The scripted model's vocabulary: one token per byte, for tests, demos and simulation.

Id b is the byte b for 0 to 255; then `<|im_start|>`, `<|im_end|>` (which ends a generation) and
`<|endoftext|>`. The template is ChatML as SmolLM2 has it. Same classes as a real model's.

Not here: what the scripted engine answers (`forebay.engine`).
"""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from forebay.core.clock import IdSource
from forebay.tokens.model import ModelTokens, Vocabulary, byte_alphabet

IM_START, IM_END, END_OF_TEXT = 256, 257, 258
_CONTROL = {"<|im_start|>": IM_START, "<|im_end|>": IM_END, "<|endoftext|>": END_OF_TEXT}
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def scripted_tokens(ids: IdSource, *, context_tokens: int = 8192) -> ModelTokens:
    """Built in code: needs no file."""
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab=byte_alphabet() | _CONTROL, merges=[], cache_capacity=0)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(text, special=True, normalized=False) for text in _CONTROL]
    )
    return ModelTokens(
        tokenizer,
        Vocabulary(_CONTROL, eos_ids=(IM_END,), bos="<|im_start|>", eos="<|im_end|>"),
        chat_template=_TEMPLATE,
        context_tokens=context_tokens,
        ids=ids,
    )
