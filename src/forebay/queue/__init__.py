"""Which waiting job runs next: see `contract.py`."""

from forebay.queue.contract import JobQueue
from forebay.queue.fairness import QueueSettings

__all__ = ["JobQueue", "QueueSettings"]
