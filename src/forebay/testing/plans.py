"""What the clients of a virtual-time world mean to do, and what they saw.

Not here: the world (`world.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.admission import AdmissionSettings
from forebay.batch import BatchSettings
from forebay.conversation import ConversationSettings
from forebay.core.errors import ForebayError
from forebay.core.event import Admitted, CallEvent, Delta, Failed, Finished
from forebay.core.job import Lane
from forebay.core.principal import UNLIMITED, RateLimits
from forebay.engine.settings import ScriptedSettings
from forebay.queue import QueueSettings

if TYPE_CHECKING:
    from forebay.testing.world import World

NOTHING_SUMMARISED = ConversationSettings(summary_share=0.0)
SCRIPT = ScriptedSettings(step_seconds=0.02, prefill_tokens_per_second=4000, start_seconds=0.5)


@dataclass(frozen=True, slots=True)
class Plan:
    """One client's intentions."""

    id: str
    tenant: int
    at: float
    prompt: str
    lane: Lane = Lane.INTERACTIVE
    max_tokens: int | None = None
    streamed: bool = True
    seed: int | None = None
    leaves_after_tokens: int | None = None
    patience_seconds: float = 1e6
    ignore_eos: bool = False
    choices: int = 1
    json_schema: str = ""
    logprobs: bool = False
    key: str = ""  # an idempotency key; plans that share one are the same request


@dataclass(slots=True)
class Seen:
    """What one client saw."""

    plan: Plan
    gateway: str
    admitted: Admitted | None = None
    tokens: int = 0
    ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: int = 0
    finished: Finished | None = None
    failed: Failed | None = None
    refused: ForebayError | None = None
    left: bool = False
    terminals: int = 0

    @property
    def token_ids(self) -> list[int]:
        """Of the first choice."""
        return self.ids.get(0, [])

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.texts.get(0, "")

    @property
    def call_id(self) -> str:
        """Of the call that it was answered with: an earlier one's, if its key was used before."""
        return self.plan.id if self.admitted is None else self.admitted.call_id

    def take(self, event: CallEvent) -> None:
        """Remember one event."""
        if isinstance(event, Admitted):
            assert self.admitted is None, "T1: admitted twice"
            self.admitted = event
        elif isinstance(event, Delta):
            assert not self.terminals, "T2: a delta after the end"
            self.tokens += len(event.token_ids)
            self.ids.setdefault(event.choice, []).extend(event.token_ids)
            self.texts[event.choice] = self.texts.get(event.choice, "") + event.text
            self.logprobs += len(event.logprobs)
        elif isinstance(event, Finished):
            self.finished, self.terminals = event, self.terminals + 1
        elif isinstance(event, Failed):
            self.failed, self.terminals = event, self.terminals + 1


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a run is about; the default is thirty random calls (or a rush of ninety that overloads
    everything) and up to four strokes of fate.

    `watch` is called after every step of the loop, for questions about a moment.
    """

    plans: Sequence[Plan] = ()
    fate: bool = True
    store_failures: float = 0.0
    store_stalls: tuple[float, float] | None = None
    script: ScriptedSettings = SCRIPT
    max_open_calls: int | None = 24
    limits: RateLimits = UNLIMITED  # of each key
    # One slot of four is reserved, so batch jobs are preempted, too.
    queue: QueueSettings = field(
        default_factory=lambda: QueueSettings(
            flow_jobs=8, lane_jobs=24, batch_reserve_percent=25, batch_starts=2
        )
    )
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    conversation: ConversationSettings = NOTHING_SUMMARISED
    batch: BatchSettings = field(default_factory=BatchSettings)
    watch: Callable[[World], None] | None = None
