"""The clients that tests/clients tries: what is tried of each, and the page that says so.

Versions are read from the lock files, the configuration from the scenario that was run, and the
test asserts that a scenario saw exactly what stands here, so that the page cannot rot.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "clients"
CHAT = ("chat", "error", "stream", "stream usage", "structured output")


@dataclass(frozen=True)
class Client:
    """One client: the group whose environment it is in, its scenario, what that must see."""

    title: str
    group: str
    package: str
    script: str
    checks: tuple[str, ...]
    remark: str = ""

    @property
    def path(self) -> Path:
        return FOLDER / ("node" if self.group == "node" else "python") / self.script

    @property
    def version(self) -> str:
        """As locked."""
        return _node_version(self.package) if self.group == "node" else self._python_version()

    def _python_version(self) -> str:
        text = (FOLDER / f"{self.group}.lock").read_text()
        found = re.search(rf"^{re.escape(self.package)}(?:\[.*\])?==(\S+)", text, re.MULTILINE)
        assert found, f"{self.package} is not in {self.group}.lock"
        return found.group(1)


@cache
def _node_packages() -> dict[str, dict[str, str]]:
    packages: dict[str, dict[str, str]] = json.loads(
        (FOLDER / "node" / "package-lock.json").read_text()
    )["packages"]
    return packages


def _node_version(package: str) -> str:
    return _node_packages()[f"node_modules/{package}"]["version"]


CLIENTS = (
    Client(
        "OpenAI, Python",
        "light",
        "openai",
        "try_openai.py",
        (
            *CHAT,
            "completions",
            "conversations",
            "logprobs",
            "models",
            "n",
            "responses",
            "responses stream",
        ),
    ),
    Client(
        "OpenAI, Node",
        "node",
        "openai",
        "try_openai.mjs",
        (*CHAT, "completions", "logprobs", "models", "n"),
    ),
    Client(
        "LangChain",
        "light",
        "langchain-openai",
        "try_langchain_openai.py",
        CHAT,
        'Structured output with `method="json_schema"`; the method with tools is refused.',
    ),
    Client("LiteLLM", "litellm", "litellm", "try_litellm.py", CHAT),
    Client(
        "Pydantic AI",
        "light",
        "pydantic-ai-slim",
        "try_pydantic_ai.py",
        CHAT,
        "Structured output with `NativeOutput(…)`; the default asks for tools and is refused.",
    ),
    Client(
        "Instructor",
        "instructor",
        "instructor",
        "try_instructor.py",
        ("error", "stream", "structured output"),
        "Only in the mode `JSON_SCHEMA`; the default asks for tools and is refused.",
    ),
    Client(
        "OpenAI Agents",
        "agents",
        "openai-agents",
        "try_openai_agents.py",
        (*CHAT, "conversation", "previous response", "session"),
        "On the Responses API, which is its default. It takes an answer that was cut off by the maximum of "
        "output tokens for a failure: for long answers raise `default_output_tokens` of the model, or "
        "send `ModelSettings(max_tokens=…)`.",
    ),
    Client(
        "llm",
        "light",
        "llm",
        "try_llm.py",
        (*CHAT, "configured", "models"),
        "In `extra-openai-models.yaml`, in the folder that `llm logs path` shows. Without a file: "
        '`llm openai endpoint http://127.0.0.1:8080/v1 --key fbk_live_… -m small "…"`.',
    ),
    Client(
        "AI SDK",
        "node",
        "@ai-sdk/openai-compatible",
        "try_ai_sdk.mjs",
        CHAT,
        "Without `supportsStructuredOutputs` it does not send the schema.",
    ),
)


def configuration(client: Client) -> str:
    """What its scenario told it, with an address and a key as users have them."""
    found = re.search(
        r"^(?:#|//) configuration\n(.*?)^(?:#|//) end(?:: (.*?))?$",
        client.path.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert found, f"{client.script} does not show its configuration"
    text = found.group(1) + (f"{found.group(2)}\n" if found.group(2) else "")
    quote = "" if "api_base: URL" in text else '"'
    text = re.sub(r"\bURL\b", f"{quote}http://127.0.0.1:8080/v1{quote}", text)
    return re.sub(r"\bKEY\b", f"{quote}fbk_live_…{quote}", text)


def _section(client: Client) -> list[str]:
    language = {".py": "python", ".mjs": "js"}[client.path.suffix]
    text = configuration(client)
    language = "yaml" if text.startswith("- ") else language
    lines = [f"## {client.title}", "", f"```{language}", *text.splitlines(), "```", ""]
    return [*lines, client.remark, ""] if client.remark else lines


def clients_page() -> str:
    """docs/reference/clients.md."""
    lines = [
        "# Clients",
        "",
        "Each of these was run, in the version named, against `forebay up` with a real model: what the",
        "table lists was seen to work (`make test-clients`). *error* means that an unknown model is told",
        "with the client's own class of errors and our message. Tools are not supported yet, so what a",
        "client does with tools is refused with 400 `unsupported_parameter`. How to point a client here",
        "is read from the scripts that were run (`tests/clients`).",
        "",
        "| Client | Package | Version | Works |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {each.title} | `{each.package}` | {each.version} | {', '.join(sorted(each.checks))} |"
        for each in CLIENTS
    ]
    lines.append("")
    for client in CLIENTS:
        lines += _section(client)
    return "\n".join(lines).rstrip() + "\n"
