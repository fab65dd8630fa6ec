"""Organisations with one of everything, for tests of the admin API over rooms in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from forebay.pipeline.admin_keys import KeyRequest

BODIES: dict[str, dict[str, Any]] = {
    "ProjectBody": {"name": "another"},
    "RateBody": {"max_requests_per_1_minute": 5},
    "AccountBody": {"name": "robot"},
    "AccountUpdate": {"name": "android"},
    "AccountKeyBody": {"name": "k"},
    "AdminKeyBody": {"name": "boss"},
    "SpendLimitBody": {"threshold_amount": 100, "currency": "USD", "interval": "month"},
    "AlertBody": {
        "threshold_amount": 100,
        "currency": "USD",
        "interval": "month",
        "webhook_url": "https://hook.example",
    },
    "Body": {},
}


@dataclass
class Tenant:
    """An organisation with one of everything, and the ids that paths may have."""

    gateway: Any
    secret: str
    ids: dict[str, str]
    actor: str = ""

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        raw = b"" if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.secret}"}
        return await self.gateway.request(method, path, body=raw, headers=headers, admin=True)

    async def get(self, path: str) -> Any:
        answer = await self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()


async def tenant(gateway, name: str, plan: str = "standard") -> Tenant:
    administration = gateway.services.administration
    key = await administration.keys.create(KeyRequest(organisation=name, plan=plan))
    admin = await administration.keys.create_admin(name, "boss")
    deputy = await administration.keys.create_admin(name, "deputy")
    made = Tenant(gateway, admin["key"], {"key_id": deputy["id"], "api_key_id": key["id"]})
    made.actor = admin["id"]
    [project] = (await made.get("/v1/organization/projects"))["data"]
    home = f"/v1/organization/projects/{project['id']}"
    made.ids["project_id"] = project["id"]
    made.ids["rate_limit_id"] = "rl-smollm2"
    account = await made.ask("POST", f"{home}/service_accounts", {"name": "robot"})
    made.ids["service_account_id"] = account.json()["id"]
    for place in ("/v1/organization", home):
        for what, body in (("spend_limit", "SpendLimitBody"), ("spend_alerts", "AlertBody")):
            answer = await made.ask("POST", f"{place}/{what}", BODIES[body])
            assert answer.status == 200, answer.body
        made.ids[f"{place == home} alert"] = answer.json()["id"]
    return made
