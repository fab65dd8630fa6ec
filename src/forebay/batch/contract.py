"""Files of calls, and the batches that are made of them: kept until they are done, whatever dies.

                     refused                       all told, or too late
    VALIDATING ──┬────────────▶ FAILED   IN_PROGRESS ──────────▶ FINALIZING ──▶ COMPLETED, EXPIRED
                 ├──────────────────────────▶ │
                 └── cancel ──▶ CANCELLING ◀──┘ cancel
                                    └──────────────────────────────────────────▶ CANCELLED

A batch is the owner of record of its items, the lines of its file. A line that is begun is

       open              keep               tell: its call is settled as completed
    ─────────▶ OPEN ─────────────▶ KEPT ─────────────────────────────▶ COMPLETED
                 └─── tell: failed ──┴───────────────────────────────▶ FAILED

An answer is kept before its call is settled and counts only once it was told to be: whoever finds a
line KEPT has to ask the ledger.

Invariants
- B1 Everything belongs to one organisation: with another's id, whatever is asked, the answer is the
  one for an id that does not exist (KeyError).
- B2 A batch goes only the ways above (`rules.py`); from where it has ended it goes nowhere.
- B3 A line has at most one outcome: the first that is told stays, and its counts, usage and charge are
  part of its batch in the same commit. So counts and sums are those of the outcomes, always.
- B4 An answer is shown only if it was kept and its call told settled. Of answers kept twice that of
  the newer attempt stays, and none replaces an outcome.
- B5 An order with a key makes one batch, however often it is sent.
- B6 A file is there whole, with its size and SHA-256, or not at all; bytes that are not those any more
  are never told as the end of it.
- B7 A file that a batch still needs is neither deleted nor expired.
- B8 Bytes and number of files are bounded per organisation; what is deleted or has expired counts no more.
- B9 What expired is gone, at that moment, whether or not it has been swept (but for B7).

What is made of them keeps, on top (`forebay.pipeline.batch`):
- B10 A file is read as a whole before any of it runs: each bad line is named, and one fails the batch.
- B11 Each line of an accepted file ends in exactly one line of the output or of the error file, whatever
  dies when. One with an answer was charged once, what its usage says; one without, nothing.
- B12 The hold of a line derives from batch and line: whoever runs it again finds the same hold.
- B13 Memory is bounded by a line and a window of them, not by the file.
- B14 A cancel, and the end of the time that a batch has, stop what runs and keep what is done.

Not here: what a line asks and how its outcome is written (`forebay.gateway`), when lines run
(`forebay.pipeline.batch`), whether a call is settled (`forebay.ledger`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from forebay.core.batch import (
    Answered,
    Batch,
    BatchState,
    Item,
    LineError,
    Place,
    Refused,
    StoredFile,
)


class FileInUse(Exception):
    """This batch needs the file."""

    def __init__(self, batch_id: str) -> None:
        self.batch_id = batch_id
        super().__init__(batch_id)


class WrongWay(Exception):
    """A batch cannot go there from where it is (B2); `batch` is as it is."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        super().__init__(f"{batch.id} is {batch.state}")


@dataclass(frozen=True, slots=True)
class Listing:
    """Which part of a list: at most `limit`, after the one with the id `after` (None: from the start)."""

    limit: int
    after: str | None = None
    newest_first: bool = True
    purpose: str | None = None  # of files


@dataclass(frozen=True, slots=True)
class Learnt:
    """What becomes known of a batch as it enters a state; the rest stays as it is."""

    model: str = ""
    total: int | None = None
    errors: tuple[LineError, ...] = ()
    files: tuple[StoredFile | None, StoredFile | None] = (None, None)  # output, errors


class Files(ABC):
    """What is known of files. Safe from any number of tasks; a cancelled caller's verb may commit."""

    @abstractmethod
    async def add(self, file: StoredFile) -> None:
        """Its bytes are stored: from now on it is there. Raises StorageFull (B8); ValueError for an id
        that is known."""

    @abstractmethod
    async def find(self, organisation_id: str, id: str) -> StoredFile:
        """Raises KeyError (B1, B9)."""

    @abstractmethod
    async def page(self, organisation_id: str, listing: Listing) -> list[StoredFile]:
        """By time of creation. Raises KeyError for an unknown `after`."""

    @abstractmethod
    async def remove(self, organisation_id: str, id: str) -> None:
        """It is not there any more; its bytes are the caller's to delete. Raises KeyError, FileInUse (B7)."""

    @abstractmethod
    async def used_bytes(self, organisation_id: str) -> int:
        """Of all its files that are there (B8)."""

    @abstractmethod
    async def sweep(self, limit: int) -> list[str]:
        """Take out up to so many that have expired (B7, B9); their ids."""

    @abstractmethod
    async def ids(self) -> list[str]:
        """Of all files, of all organisations, those that are still to be swept included: bytes of any
        other are nobody's."""


class Batches(ABC):
    """Batches and their items; as safe as `Files`, and in the same store."""

    @abstractmethod
    async def create(self, batch: Batch) -> Batch:
        """Store it; with the key of an earlier one of the organisation: that one, as it is (B5).

        Its input file, if that is there, is needed until it has ended (B7). ValueError for an id that
        is known.
        """

    @abstractmethod
    async def find(self, organisation_id: str, id: str) -> Batch:
        """Raises KeyError (B1)."""

    @abstractmethod
    async def by_key(self, organisation_id: str, key: str) -> Batch | None:
        """The one that was ordered with this key (B5); None, also for an empty key."""

    @abstractmethod
    async def page(self, organisation_id: str, listing: Listing) -> list[Batch]:
        """By time of creation. Raises KeyError for an unknown `after`."""

    @abstractmethod
    async def unfinished(self) -> list[Batch]:
        """All that have not ended, of all organisations, oldest first."""

    @abstractmethod
    async def advance(
        self, batch_id: str, to: BatchState, at: float, learnt: Learnt | None = None
    ) -> Batch:
        """Let it enter this state; the files that it has then are added in the same commit, whatever
        B8 says. Where it is there already, nothing changes. Raises KeyError, WrongWay (B2)."""

    @abstractmethod
    async def open(self, places: Sequence[Place]) -> None:
        """These lines are about to run. One that was begun before stays as it is. KeyError: no such batch."""

    @abstractmethod
    async def keep(self, place: Place, attempt: int, answer: bytes) -> None:
        """Keep the answer of a call that is about to be settled (B4). One that was told before stays.

        Raises StaleAttempt for an older attempt than was kept; KeyError for a line that is not begun.
        """

    @abstractmethod
    async def tell(self, place: Place, outcome: Answered | Refused) -> bool:
        """How its call ended (B3); false if it was told before. KeyError for a line that is not begun,
        or of which no answer was kept."""

    @abstractmethod
    async def items(self, batch_id: str, after: int, limit: int) -> list[Item]:
        """Lines that were begun, in order, those with a number above `after`."""

    @abstractmethod
    async def pending(self) -> list[Place]:
        """All lines without an outcome that were begun, of batches that have not ended; by batch id and
        number."""

    @abstractmethod
    async def forget_items(self, limit: int) -> int:
        """Forget up to so many items of batches that have ended, whose files tell of them; how many."""


class Upload(ABC):
    """Bytes that are being stored. One task writes."""

    @abstractmethod
    async def write(self, chunk: bytes) -> None:
        """Raises StoreUnavailable: the disk is full, or fails."""

    @abstractmethod
    async def commit(self) -> None:
        """All are here: durable under their name when this returns, or StoreUnavailable."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """So far."""

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Of what was written so far, in lower-case hexadecimal."""


class Blobs(ABC):
    """The bytes of files, by the file's id. Never in memory as a whole."""

    @abstractmethod
    def create(self, id: str) -> AbstractAsyncContextManager[Upload]:
        """Store bytes under this id; what is not committed on leaving is forgotten. The same id again
        replaces what was there, at the commit. ValueError for an id that could not be a file's name."""

    @abstractmethod
    def read(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Its bytes, in order, in pieces of at most 64 KiB. The last piece comes only if all of them
        are those that were stored (B6): else FileDamaged, as for bytes that are not there."""

    @abstractmethod
    async def delete(self, id: str) -> None:
        """Idempotent."""

    @abstractmethod
    async def ids(self) -> list[str]:
        """Of all that are committed. What an earlier process left half written is deleted."""
