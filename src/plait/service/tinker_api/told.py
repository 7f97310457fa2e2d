"""Told: pieces of answers that several endpoints share."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query

from plait.core.runs import ATTENTION, HEAD, MLP, LoraSpec
from plait.service.paths import Path
from plait.service.ports import CheckpointInfo

Limit = Annotated[int, Query(ge=0, le=1000)]
Offset = Annotated[int, Query(ge=0, le=2**31)]


def time(seconds: float) -> str:
    """Seconds since the epoch as clients read them."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def labels(metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """Metadata of a user's own, which clients take as text only."""
    return {key: str(value) for key, value in metadata.items()} or None


def trained(lora: LoraSpec) -> dict[str, bool]:
    """Which parts an adapter changes."""
    targets = set(lora.targets)
    return {
        "train_attn": bool(targets & set(ATTENTION)),
        "train_mlp": bool(targets & set(MLP)),
        "train_unembed": HEAD in targets,
    }


def path_of(info: CheckpointInfo) -> Path:
    """A checkpoint's address."""
    return Path(model_id=info.model_id, kind=info.kind, name=info.name)


def checkpoint(info: CheckpointInfo) -> dict[str, Any]:
    """A checkpoint."""
    path = path_of(info)
    return {
        "checkpoint_id": path.checkpoint_id,
        "checkpoint_type": str(info.kind),
        "time": time(info.created_at),
        "tinker_path": str(path),
        "size_bytes": info.size_bytes,
        "public": info.public,
        "user_metadata": labels(info.user_metadata),
        "expires_at": None if info.expires_at is None else time(info.expires_at),
    }


def cursor(limit: int, offset: int, total: int) -> dict[str, int]:
    """Where a list stands."""
    return {"offset": offset, "limit": limit, "total_count": total}
