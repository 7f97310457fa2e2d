"""A whole service on a port, and OpenAI's own client for it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openai
import uvicorn
from edge_support import Edge, edge
from launches import SCRIPTED
from service_support import PickleCodec

from plait.core.ids import TenantId


@dataclass(kw_only=True)
class Served:
    """A service that listens."""

    edge: Edge
    url: str
    key: str
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    def client(self, key: str | None = None) -> openai.AsyncOpenAI:
        """OpenAI's client, closed with the service."""
        made = openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=key or self.key, max_retries=0, timeout=60
        )
        self.clients.append(made)
        return made

    async def key_of(self, tenant: str) -> str:
        tenant_id = TenantId(tenant)
        await self.edge.access.put_tenant(tenant_id, name=tenant)
        return (await self.edge.access.issue(tenant_id)).key


@asynccontextmanager
async def served(
    directory: Path, model: Path, *, engine: str = "scripted", **over: Any
) -> AsyncIterator[Served]:
    """A house, its app, and uvicorn on a free port."""
    settings = replace(SCRIPTED, engine=engine)
    over = {"sampling": None, "codec": PickleCodec(), "settings": settings, **over}
    async with edge(directory, model, **over) as e:
        listening = socket.create_server(("127.0.0.1", 0))  # who comes early waits in it
        host, port = listening.getsockname()[:2]
        server = uvicorn.Server(uvicorn.Config(e.app, log_config=None, lifespan="off"))
        running = asyncio.create_task(server.serve([listening]))
        key = (await e.access.issue(TenantId("local"))).key
        made = Served(edge=e, url=f"http://{host}:{port}", key=key)
        try:
            yield made
        finally:
            for client in made.clients:
                await client.close()
            server.should_exit = True
            await running


def chatty(directory: Path, byte_model: Path) -> Path:
    """The byte model with a chat template."""
    target = directory / "chatty"
    target.mkdir()
    for file in byte_model.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    (target / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    return target
