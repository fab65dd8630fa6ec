"""The command line `llm`: an endpoint given by hand, and one that is configured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from seen import KEY, MODEL, QUESTION, REFUSAL, UNKNOWN, URL, Seen

PROGRAM = Path(sys.executable).with_name("llm")
SHORT = ("-o", "max_tokens", "20", "-o", "temperature", "0")
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"enum": ["Paris", "Rome", "Tokyo"]}, "sure": {"type": "boolean"}},
    "required": ["capital", "sure"],
    "additionalProperties": False,
}
# In the file extra-openai-models.yaml of llm's own folder.
CONFIGURATION = """
# configuration
- model_id: forebay
  model_name: small
  api_base: URL
  api_key_name: forebay  # llm keys set forebay --value KEY
  supports_schema: true
# end
"""


def llm(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with its settings and logs in `home`."""
    return subprocess.run(
        [PROGRAM, *arguments],
        env={**os.environ, "LLM_USER_PATH": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def endpoint(seen: Seen, home: Path) -> None:
    """Nothing is configured."""
    where = ("openai", "endpoint", URL, "--key", KEY)
    done = llm(*where, "-m", MODEL, *SHORT, QUESTION, home=home)
    seen.check("stream", "Paris" in done.stdout, value=done)
    done = llm(*where, "-m", MODEL, *SHORT, "--no-stream", QUESTION, home=home)
    seen.check("chat", "Paris" in done.stdout, value=done)
    done = llm(*where, "--models", home=home)
    seen.check("models", "smollm2" in done.stdout, value=done)
    done = llm(*where, "-m", UNKNOWN, QUESTION, home=home)
    seen.check("error", done.returncode == 1 and REFUSAL in done.stderr, value=done)
    seen.check("error", "Traceback" not in done.stderr, value=done)


def configured(seen: Seen, home: Path) -> None:
    """A model of its own; what it used is in the log."""
    text = CONFIGURATION.replace("URL", URL)
    (home / "extra-openai-models.yaml").write_text(text)
    done = llm("keys", "set", "forebay", "--value", KEY, home=home)
    seen.check("configured", done.returncode == 0, value=done)
    done = llm("-m", "forebay", *SHORT, QUESTION, home=home)
    seen.check("configured", "Paris" in done.stdout, value=done)
    logged = json.loads(llm("logs", "-n", "1", "--json", home=home).stdout)
    seen.check("stream usage", logged[0]["output_tokens"] > 0, value=logged)
    schema = ("--schema", json.dumps(SCHEMA), "-o", "max_tokens", "60", "-o", "temperature", "0")
    done = llm("-m", "forebay", *schema, QUESTION, home=home)
    seen.check("structured output", set(json.loads(done.stdout)) == {"capital", "sure"}, value=done)


def main() -> None:
    """Everything, in order."""
    seen = Seen("llm")
    with tempfile.TemporaryDirectory() as home:
        endpoint(seen, Path(home))
        configured(seen, Path(home))
    seen.end()


if __name__ == "__main__":
    main()
