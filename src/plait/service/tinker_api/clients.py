"""Clients: what a client asks of the server before it works.

Flags are a throttle that the server holds: a tenant's own (``Clients.flags``) go over everybody's.
"""

from typing import Any

from fastapi import APIRouter

from plait.service.auth import Caller
from plait.service.errors import responses
from plait.service.flags import CHUNK_BYTES, SAMPLES
from plait.service.ports import House
from plait.service.tinker_api import bodies

FLAGS: dict[str, Any] = {
    "pjwt_auth_enabled": False,
    "credential_default_source": "api_key",
    # Chunks of one call are sent at once, the first one last: lines order them.
    "parallel_fwdbwd_chunks": True,
    "fwdbwd_max_chunk_len": 1024,
    "fwdbwd_max_chunk_bytes_count": CHUNK_BYTES,
    # Compression costs both ends more than a local network does.
    "proto_compress_fwdbwd": False,
    "sample_max_concurrent_requests": SAMPLES,
    "sample_join_sampling_session": True,
    "custom_loss_server_side": True,
    # What clients of 0.24 and 0.25 must be told to behave like newer ones.
    "proto_write_fwdbwd": True,
    "fwd_via_fwdbwd": True,
    "create_model_via_load_weights": True,
}
"""What every client is told; for the rest it has defaults of its own."""
DYNAMIC = {
    "refresh_interval_sec": 300,
    "sample_cancel_enabled": True,
    "sample_cancel_max_batch_size": 64,
}
NOTES = {
    "stable_reinforce": "a surrogate: REINFORCE with truncated ratios (docs/guide/losses.md); "
    "the original's formula is not published",
    "gspo": "thresholds default to ppo's; its authors' are far tighter",
}
"""What a client should know of losses that go by a name from elsewhere."""


def routes(house: House) -> APIRouter:
    """The endpoints, over a house."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The server answers."""
        return {"status": "ok"}

    @router.post("/client/config", responses=responses())
    async def client_config(body: bodies.Nothing, who: Caller) -> dict[str, Any]:
        """Flags of this caller's clients."""
        return {**FLAGS, **await house.clients.flags(who)}

    @router.post("/client/dynamic_config", responses=responses())
    async def dynamic_config(body: bodies.Nothing, who: Caller) -> dict[str, Any]:
        """Flags that a running client reads again and again."""
        flags = await house.clients.flags(who)
        return {name: flags.get(name, value) for name, value in DYNAMIC.items()}

    @router.get("/get_server_capabilities", responses=responses())
    async def capabilities(who: Caller) -> dict[str, Any]:
        """Base models, and what is this server's own about its losses."""
        models = [
            {
                "model_name": offer.name,
                "max_context_length": offer.max_context,
                "trainable": True,
                "sampleable": True,
            }
            for offer in house.offers()
        ]
        return {"supported_models": models, "loss_notes": NOTES}

    return router
