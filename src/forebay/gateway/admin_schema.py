"""The wire types of the admin API, as OpenAI names them: bodies, queries and answers.

Bodies and queries refuse names that they do not know. What is our own beyond OpenAI's is said in
docs/reference/admin.md: `webhook_url` of spend alerts, `usd` of costs.

Not here: usage and audit logs (`admin_usage.py`, `admin_audit.py` have their own).
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from forebay.core.money import MAX_NANOS

T = TypeVar("T")

NANOS_PER_CENT = 10_000_000
MAX_CENTS = MAX_NANOS // NANOS_PER_CENT
MAX_SECONDS = 36_500 * 86_400
MAX_RATE = 2**31 - 1  # also what a rate limit says that is none

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Limit = Annotated[int, Meta(ge=1, le=100)]
Rate = Annotated[int, Meta(ge=1, le=MAX_RATE)]
Lifetime = Annotated[int, Meta(ge=1, le=MAX_SECONDS)]
Cents = Annotated[int, Meta(ge=0, le=MAX_CENTS)]
Order = Literal["asc", "desc"]
WebhookUrl = Annotated[
    str,
    Meta(
        max_length=2_000,
        pattern=r"^https?://[^\s/?#@]+([/?#]\S*)?$",
        extra={"form": "an address that begins with http:// or https://, without a user's name"},
    ),
]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request may say; nothing, unless a subclass says otherwise."""


class Listing(Body, frozen=True):
    """A part of a list."""

    after: str | None = None
    before: str | None = None
    limit: Limit = 20


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list, and whether there is more of it."""

    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Deleted(msgspec.Struct, frozen=True):
    """It is gone."""

    id: str
    object: str
    deleted: bool = True


# -- projects


class ProjectBody(Body, frozen=True):
    """To create or rename one."""

    name: Name


class ProjectListing(Listing, frozen=True):
    """Which projects."""

    include_archived: bool = False


class WireProject(msgspec.Struct, frozen=True):
    """A project."""

    id: str
    name: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]
    object: Literal["organization.project"] = "organization.project"


# -- API keys


class KeyListing(Listing, frozen=True):
    """Which keys. Those of an archived project are `inactive`."""

    owner_project_access: Literal["active", "inactive", "any"] = "any"


class KeyAccount(msgspec.Struct, frozen=True):
    """The service account that owns a key."""

    id: str
    name: str
    created_at: int
    role: Literal["member"] = "member"


class KeyOwner(msgspec.Struct, frozen=True):
    """There are no users here: a key is a service account's, or nobody's in particular."""

    type: Literal["user", "service_account"]
    service_account: KeyAccount | None
    user: None = None


class WireKey(msgspec.Struct, frozen=True):
    """An API key. When it was last used is not recorded."""

    id: str
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    owner: KeyOwner
    owner_project_access: Literal["active", "inactive"]
    last_used_at: int | None = None
    object: Literal["organization.project.api_key"] = "organization.project.api_key"


# -- rate limits


class RateListing(Listing, frozen=True):
    """Which rate limits."""

    limit: Limit = 100


class RateBody(Body, frozen=True):
    """What to change. None: as before; 2147483647: no limit of its own."""

    max_requests_per_1_minute: Rate | None = None
    max_tokens_per_1_minute: Rate | None = None
    batch_1_day_max_input_tokens: Rate | None = None


class WireRate(msgspec.Struct, frozen=True):
    """What a project may use of a model: the lowest of what was set for it, for the project and for
    the plan; 2147483647 where nothing limits it."""

    id: str
    model: str
    max_requests_per_1_minute: int
    max_tokens_per_1_minute: int
    batch_1_day_max_input_tokens: int
    object: Literal["project.rate_limit"] = "project.rate_limit"


# -- service accounts


class AccountBody(Body, frozen=True):
    """To create one, with a key unless told not to."""

    name: Name
    create_service_account_only: bool | None = None
    expires_in_seconds: Lifetime | None = None


class AccountUpdate(Body, frozen=True):
    """To rename one. Every service account is a member."""

    name: Name | None = None
    role: Literal["member"] | None = None


class AccountKeyBody(Body, frozen=True):
    """To make a key."""

    name: Name | None = None
    expires_in_seconds: Lifetime | None = None


class WireAccount(msgspec.Struct, frozen=True):
    """A service account."""

    id: str
    name: str
    created_at: int
    role: Literal["member"] = "member"
    object: Literal["organization.project.service_account"] = "organization.project.service_account"


class WireAccountKey(msgspec.Struct, frozen=True):
    """A key just made; `value` is shown this once."""

    id: str
    name: str
    value: str
    created_at: int
    expires_at: int | None
    object: Literal["organization.project.service_account.api_key"] = (
        "organization.project.service_account.api_key"
    )


class WireNewAccount(msgspec.Struct, frozen=True):
    """A service account just made, with its key."""

    id: str
    name: str
    created_at: int
    api_key: WireAccountKey | None
    role: Literal["member"] = "member"
    object: Literal["organization.project.service_account"] = "organization.project.service_account"


# -- admin keys


class AdminKeyListing(Body, frozen=True):
    """Which admin keys."""

    after: str | None = None
    limit: Limit = 20
    order: Order = "asc"


class AdminKeyBody(Body, frozen=True):
    """To make one."""

    name: Name
    expires_in_seconds: Lifetime | None = None


class AdminKeyOwner(msgspec.Struct, frozen=True):
    """There are no users here: an admin key is its organisation's."""

    id: str
    name: str
    created_at: int | None = None
    type: Literal["user"] = "user"
    object: Literal["organization.user"] = "organization.user"
    role: Literal["owner"] = "owner"


class WireAdminKey(msgspec.Struct, frozen=True):
    """An admin key. When it was last used is not recorded."""

    id: str
    name: str
    redacted_value: str
    created_at: int
    expires_at: int | None
    owner: AdminKeyOwner
    value: str | msgspec.UnsetType = msgspec.UNSET
    last_used_at: int | None = None
    object: Literal["organization.admin_api_key"] = "organization.admin_api_key"


# -- spend


class SpendLimitBody(Body, frozen=True):
    """A hard limit for each month of UTC."""

    threshold_amount: Cents
    currency: Literal["USD"]
    interval: Literal["month"]


class Enforcement(msgspec.Struct, frozen=True):
    """Whether it refuses calls now."""

    status: Literal["inactive", "enforcing"]


class WireSpendLimit(msgspec.Struct, frozen=True):
    """A hard limit; `threshold_amount` is in cents, rounded down. `interval` is `day` or `total`
    only where the operator said so."""

    threshold_amount: int
    enforcement: Enforcement
    interval: Literal["month", "day", "total"]
    object: Literal["organization.spend_limit", "project.spend_limit"]
    currency: Literal["USD"] = "USD"


class LimitDeleted(msgspec.Struct, frozen=True):
    """There is no limit now."""

    object: Literal["organization.spend_limit.deleted", "project.spend_limit.deleted"]
    deleted: bool = True


class Channel(Body, frozen=True):
    """Who is to be told. It is passed on to the webhook: we send no mail."""

    type: Literal["email"] = "email"
    recipients: Annotated[list[Annotated[str, Meta(max_length=320)]], Meta(max_length=100)] = []
    subject_prefix: Annotated[str, Meta(max_length=200)] | None = None


class AlertBody(Body, frozen=True):
    """Tell this webhook when a month's spend has reached so many cents."""

    threshold_amount: Annotated[int, Meta(ge=1, le=MAX_CENTS)]
    currency: Literal["USD"]
    interval: Literal["month"]
    webhook_url: WebhookUrl
    notification_channel: Channel = Channel()


class AlertListing(Listing, frozen=True):
    """Which alerts."""

    order: Order = "asc"


class WireAlert(msgspec.Struct, frozen=True):
    """A spend alert; `threshold_amount` is in cents, rounded up. `enabled` is false once its
    receiver has answered 410: change the alert, and it is told again."""

    id: str
    threshold_amount: int
    enabled: bool
    webhook_url: str
    notification_channel: Channel
    object: Literal["organization.spend_alert", "project.spend_alert"]
    interval: Literal["month", "day", "total"]
    currency: Literal["USD"] = "USD"


class NewAlert(WireAlert, frozen=True, kw_only=True):
    """A spend alert just made; its signing secret is shown once."""

    webhook_secret: str
