"""Conversations and stored responses: see `contract.py`."""

from forebay.conversation.contract import Conversations, Summaries, TurnLogs, Turns
from forebay.conversation.quote import marked, quoted
from forebay.conversation.settings import ConversationSettings
from forebay.conversation.window import Dialogue, Search, divide

__all__ = [
    "ConversationSettings",
    "Conversations",
    "Dialogue",
    "Search",
    "Summaries",
    "TurnLogs",
    "Turns",
    "divide",
    "marked",
    "quoted",
]
