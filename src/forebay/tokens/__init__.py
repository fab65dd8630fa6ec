"""Chat templates, tokenizers, decoders: see `contract.py`."""

from forebay.tokens.contract import Decoder, Piece, Tokens

__all__ = ["Decoder", "Piece", "Tokens"]
