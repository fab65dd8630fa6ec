"""Every metric and log event by name, and the canonical log line: see `metrics.py` and `log.py`."""

from forebay.observe.log import canonical, configure, get_logger
from forebay.observe.metrics import Metrics

__all__ = ["Metrics", "canonical", "configure", "get_logger"]
