"""The worker's configuration: one frozen model made from the environment."""

from worker.config.config import Config, load, variables
from worker.config.serving import TAKE_VARIABLE

__all__ = ["TAKE_VARIABLE", "Config", "load", "variables"]
