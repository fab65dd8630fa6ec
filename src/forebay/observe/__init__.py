"""Every metric, log event and span name; the canonical log line."""
