"""The agentic search environment: two-hop questions, a real retriever in its own process."""

from plait.envs.search.config import SearchConfig
from plait.envs.search.source import factory

__all__ = ["SearchConfig", "factory"]
