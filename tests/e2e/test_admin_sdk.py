"""OpenAI's own Python client as the administrator of a real server: the admin API's specification."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal

import openai
import pytest
from openai import OpenAI

from tests.e2e.running import Server

MODEL = "scripted"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = {"FOREBAY_SCRIPTED__STEP_SECONDS": "0.005"}
    folder = tmp_path_factory.mktemp("admin")
    with Server.start("--model", MODEL, data_dir=folder, env=env) as server:
        yield server


def admin_of(server: Server, organisation: str) -> OpenAI:
    made = server.command_json("keys", "create-admin", "--organisation", organisation)
    return client(server.admin_url, made["key"])


def client(url: str, admin_key: str) -> OpenAI:
    base = url.rstrip("/").removesuffix("/v1") + "/v1"
    return OpenAI(base_url=base, admin_api_key=admin_key, api_key="unused", max_retries=0)


@pytest.fixture(scope="module")
def ours(server: Server) -> Iterator[OpenAI]:
    server.command_json("keys", "create", "--organisation", "acme", "--project", "first")
    with admin_of(server, "acme") as admin:
        yield admin


def say(server: Server, key: str, words: str = "Hello") -> openai.types.chat.ChatCompletion:
    with OpenAI(base_url=server.base_url, api_key=key, max_retries=0) as caller:
        return caller.chat.completions.create(
            model=MODEL, max_tokens=5, messages=[{"role": "user", "content": words}]
        )


def test_projects_are_created_renamed_listed_and_archived(server):
    server.command_json("keys", "create", "--organisation", "builders", "--project", "first")
    projects = admin_of(server, "builders").admin.organization.projects
    made = [projects.create(name=f"team {number}") for number in range(3)]
    assert made[0].object == "organization.project"
    renamed = projects.update(made[0].id, name="team zero")
    assert projects.retrieve(made[0].id) == renamed
    assert renamed.name == "team zero"
    names = [project.name for project in projects.list(limit=2)]  # the client turns the pages
    assert names == ["first", "team zero", "team 1", "team 2"]
    assert projects.archive(made[2].id).status == "archived"
    assert made[2].id not in {project.id for project in projects.list()}
    assert made[2].id in {project.id for project in projects.list(include_archived=True)}


def test_a_service_account_gets_keys_that_work_until_they_are_deleted(server, ours):
    projects = ours.admin.organization.projects
    project = projects.create(name="robots")
    accounts = projects.service_accounts
    account = accounts.create(project.id, name="robot", expires_in_seconds=3600)
    assert say(server, account.api_key.value).usage.completion_tokens == 5
    second = accounts.api_keys.create(account.id, project_id=project.id, name="spare")
    say(server, second.value)
    assert accounts.update(account.id, project_id=project.id, name="android").name == "android"
    assert accounts.retrieve(account.id, project_id=project.id).name == "android"
    assert [each.id for each in accounts.list(project.id)] == [account.id]

    keys = list(projects.api_keys.list(project.id))
    assert [key.id for key in keys] == [account.api_key.id, second.id]
    assert keys[0].owner.service_account.id == account.id
    assert projects.api_keys.retrieve(second.id, project_id=project.id) == keys[1]
    assert projects.api_keys.delete(second.id, project_id=project.id).deleted is True
    with pytest.raises(openai.AuthenticationError):
        say(server, second.value)
    say(server, account.api_key.value)
    for _ in range(4):
        accounts.api_keys.create(account.id, project_id=project.id, name="spare")
    for key in projects.api_keys.list(project.id, limit=2):
        projects.api_keys.delete(key.id, project_id=project.id)
    assert list(projects.api_keys.list(project.id)) == []
    account = accounts.create(project.id, name="robot")
    assert accounts.delete(account.id, project_id=project.id).deleted is True
    with pytest.raises(openai.AuthenticationError):
        say(server, account.api_key.value)


def test_an_archived_projects_keys_are_refused_at_once(server, ours):
    projects = ours.admin.organization.projects
    project = projects.create(name="short-lived")
    key = projects.service_accounts.create(project.id, name="robot").api_key
    say(server, key.value)
    projects.archive(project.id)
    with pytest.raises(openai.AuthenticationError):
        say(server, key.value)


def test_rate_limits_of_a_model_are_listed_and_changed(ours):
    projects = ours.admin.organization.projects
    project = projects.create(name="limited")
    [limit] = projects.rate_limits.list_rate_limits(project.id)
    assert (limit.model, limit.max_requests_per_1_minute) == (MODEL, 2**31 - 1)
    changed = projects.rate_limits.update_rate_limit(
        limit.id, project_id=project.id, max_requests_per_1_minute=9, max_tokens_per_1_minute=100
    )
    assert (changed.max_requests_per_1_minute, changed.max_tokens_per_1_minute) == (9, 100)
    assert list(projects.rate_limits.list_rate_limits(project.id)) == [changed]
    with pytest.raises(openai.BadRequestError) as refused:
        projects.rate_limits.update_rate_limit(
            limit.id, project_id=project.id, max_images_per_1_minute=1
        )
    assert refused.value.code == "unknown_parameter"
    assert refused.value.param == "max_images_per_1_minute"


def test_a_spend_limit_refuses_calls_until_it_is_lifted(server, ours):
    projects = ours.admin.organization.projects
    project = projects.create(name="broke")
    key = projects.service_accounts.create(project.id, name="robot").api_key
    limit = projects.spend_limit.update(
        project.id, currency="USD", interval="month", threshold_amount=0
    )
    assert (limit.threshold_amount, limit.enforcement.status) == (0, "enforcing")
    with pytest.raises(openai.RateLimitError) as refused:
        say(server, key.value)
    assert refused.value.code == "insufficient_quota"
    assert projects.spend_limit.retrieve(project.id) == limit
    assert projects.spend_limit.delete(project.id).deleted is True
    say(server, key.value)
    with pytest.raises(openai.NotFoundError):
        projects.spend_limit.retrieve(project.id)

    whole = ours.admin.organization.spend_limit
    assert whole.update(currency="USD", interval="month", threshold_amount=5000).interval == "month"
    assert whole.retrieve().threshold_amount == 5000
    assert whole.delete().object == "organization.spend_limit.deleted"


def test_spend_alerts_are_kept_for_the_organisation_and_its_projects(ours):
    organisation = ours.admin.organization
    project = organisation.projects.create(name="watched")
    wanted = {
        "currency": "USD",
        "interval": "month",
        "threshold_amount": 1000,
        "notification_channel": {"type": "email", "recipients": ["a@example.org"]},
        "extra_body": {"webhook_url": "https://hook.example/spend"},
    }
    alerts = organisation.spend_alerts
    alert = alerts.create(**wanted)
    assert alert.webhook_url == "https://hook.example/spend"
    assert alert.webhook_secret.startswith("whsec_")
    assert alert.notification_channel.recipients == ["a@example.org"]
    changed = alerts.update(alert.id, **{**wanted, "threshold_amount": 2000})
    assert alerts.retrieve(alert.id) == changed
    assert [each.threshold_amount for each in alerts.list(order="desc")] == [2000]
    assert alerts.delete(alert.id).deleted is True
    assert list(alerts.list()) == []

    mine = organisation.projects.spend_alerts
    alert = mine.create(project.id, **wanted)
    assert alert.object == "project.spend_alert"
    kept = mine.retrieve(alert.id, project_id=project.id)
    shown_once = {"webhook_secret": alert.webhook_secret}
    assert {**kept.to_dict(), **shown_once} == alert.to_dict()
    assert [each.id for each in mine.list(project.id)] == [alert.id]
    assert mine.update(alert.id, project_id=project.id, **wanted) == kept
    assert mine.delete(alert.id, project_id=project.id).deleted is True


def test_usage_and_costs_say_what_calls_used(server, ours):
    organisation = ours.admin.organization
    project = organisation.projects.create(name="busy")
    key = organisation.projects.service_accounts.create(project.id, name="robot").api_key
    start = int(time.time())
    answers = [say(server, key.value) for _ in range(3)]
    usage = organisation.usage.completions(
        start_time=start, bucket_width="1h", group_by=["project_id", "model"],
        project_ids=[project.id],
    )  # fmt: skip
    results = [result for bucket in usage.data for result in bucket.results]
    assert sum(result.num_model_requests for result in results) == 3
    assert {(r.project_id, r.model) for r in results} == {(project.id, MODEL)}
    used = sum(answer.usage.prompt_tokens for answer in answers)
    assert sum(result.input_tokens for result in results) == used
    assert sum(result.output_tokens for result in results) == 15
    costs = organisation.usage.costs(start_time=start, project_ids=[project.id])
    spent = sum(result.amount.value for bucket in costs.data for result in bucket.results)
    rows = [row for row in server.usage() if row["key_id"] == key.id]
    assert spent == pytest.approx(sum(row["amount_nanos"] for row in rows) / 1e9)
    limits = organisation.projects.list(limit=1)
    assert limits.has_more is True


def test_a_keys_holder_reads_its_own_usage_and_can_change_nothing(server, ours):
    """Also not what administration offers: that is on the other listener, for other keys."""
    names = ("--organisation", "acme", "--project", "first", "--requests-per-minute", "50")
    made = server.command_json("keys", "create", *names, "--monthly-budget", "1.00")
    say(server, made["key"])
    with OpenAI(base_url=server.base_url, api_key=made["key"], max_retries=0) as caller:
        mine = caller.get("/usage/me", cast_to=dict)
        assert mine["key_id"] == made["id"]
        assert (mine["current_period"]["calls"], mine["current_period"]["output_tokens"]) == (1, 5)
        assert mine["limits"]["key"]["requests_per_minute"] == 50
        spent = Decimal(mine["current_period"]["cost_usd"])
        assert Decimal(mine["budget"]["key"]["left_usd"]) == Decimal("1.00") - spent
        for change in ("post", "patch", "put", "delete"):
            with pytest.raises(openai.APIStatusError) as refused:
                getattr(caller, change)("/usage/me", cast_to=dict, body={"budget_usd": "9"})
            assert refused.value.status_code == 405
        with pytest.raises(openai.NotFoundError):
            caller.get("/organization/projects", cast_to=dict)


def test_the_command_line_rotates_keys_limits_projects_and_books_credit(server):
    """The running server serves what it was told the moment it is told."""
    names = ("--organisation", "shop", "--project", "web")
    old = server.command_json("keys", "create", *names, "--name", "till")
    new = server.command_json("keys", "rotate", "till", "--overlap", "1h")
    assert (new["id"], new["old_works_until"] > time.time() + 3500) == (old["id"], True)
    for key in (old, new):
        say(server, key["key"])
    newest = server.command_json("keys", "rotate", "till", "--overlap", "0")
    for key in (old, new):
        with pytest.raises(openai.AuthenticationError):
            say(server, key["key"])
    say(server, newest["key"])

    said = server.command(
        "projects", "limit", *names, "--model", MODEL, "--requests-per-minute", "1"
    )
    assert said.returncode == 0, said.stderr
    say(server, newest["key"])
    with pytest.raises(openai.RateLimitError):
        say(server, newest["key"])
    server.command("projects", "limit", *names, "--model", MODEL, "--requests-per-minute", "none")
    say(server, newest["key"])

    for _ in range(2):
        row = server.command_json("budgets", "top-up", "shop", "3.00", "--id", "payment-1")
        # Credit comes on top of what was spent before there was any.
        assert Decimal(row["budget_usd"]) - Decimal(row["spent_usd"]) == Decimal("3.00")
        assert row["period"] == "total"
    row = server.command_json("budgets", "set", "0.00", "--key", "till", "--period", "day")
    assert (row["key"], row["period"]) == ("till", "day")
    with pytest.raises(openai.RateLimitError, match="daily budget of its key"):
        say(server, newest["key"])
    assert "archived shop/web" in server.command("projects", "archive", *names).stdout
    with pytest.raises(openai.AuthenticationError):
        say(server, newest["key"])


def test_admin_keys_are_made_listed_and_deleted(server, ours):
    keys = ours.admin.organization.admin_api_keys
    made = keys.create(name="second", expires_in_seconds=3600)
    assert made.value.startswith("fba_live_")
    assert made.redacted_value not in ("", made.value)
    with client(server.admin_url, made.value) as second:
        assert second.admin.organization.admin_api_keys.retrieve(made.id).name == "second"
        assert "second" in [key.name for key in keys.list(order="desc", limit=1)]
        assert keys.delete(made.id).deleted is True
        with pytest.raises(openai.AuthenticationError):
            second.admin.organization.admin_api_keys.retrieve(made.id)


def test_the_audit_log_says_who_changed_what(server, ours):
    organisation = ours.admin.organization
    project = organisation.projects.create(name="audited")
    server.command("budgets", "set", "5", "--organisation", "acme", "--project", "audited")
    logs = organisation.audit_logs
    by_hand, by_key = logs.list(project_ids=[project.id], limit=2).data
    assert (by_hand.type, by_hand.actor.type) == ("project.updated", "session")
    assert by_hand.project_updated.id == project.id
    assert (by_key.type, by_key.actor.type) == ("project.created", "api_key")
    mine = by_key.actor.api_key.id
    assert mine in {key.id for key in organisation.admin_api_keys.list()}
    created = logs.list(event_types=["project.created"], actor_ids=[mine], limit=100).data
    assert {entry.type for entry in created} == {"project.created"}
    recent = logs.list(effective_at={"gte": by_key.effective_at}, limit=100).data
    assert by_hand.id in {entry.id for entry in recent}


def test_l14_another_organisations_administrator_finds_nothing(server, ours):
    """L14: ids of ours are answered as ids of nothing."""
    server.command_json("keys", "create", "--organisation", "other")
    project = ours.admin.organization.projects.create(name="private")
    with admin_of(server, "other") as theirs:
        projects = theirs.admin.organization.projects
        assert [each.name for each in projects.list()] == ["default"]
        said = []
        for id_ in (project.id, "proj_" + "0" * 32):
            with pytest.raises(openai.NotFoundError) as missing:
                projects.archive(id_)
            said.append(missing.value.message.split("request id")[0])
        assert said[0] == said[1]
    assert ours.admin.organization.projects.retrieve(project.id).status == "active"


def test_each_kind_of_key_is_for_its_own_listener(server, ours):
    with (
        client(server.admin_url, server.key) as wrong,
        pytest.raises(openai.AuthenticationError, match="is for the API only"),
    ):
        wrong.admin.organization.projects.list()
    with pytest.raises(openai.AuthenticationError, match="is for the admin listener only"):
        say(server, ours.admin_api_key)
