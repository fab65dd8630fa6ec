"""Chat templates, tokenizers, decoders: see `contract.py`."""

from forebay.tokens.contract import Decoder, Piece, Tokens
from forebay.tokens.settings import TokensSettings

__all__ = ["Decoder", "Piece", "Tokens", "TokensSettings"]
