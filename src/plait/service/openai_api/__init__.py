"""The OpenAI API: sampling of base models, runs and checkpoints with any OpenAI client.

``POST /v1/chat/completions``, ``POST /v1/completions``, ``GET /v1/models``. It samples through the
same lane as the Tinker API, by the same shares.
"""

from plait.service.openai_api.router import router

__all__ = ["router"]
