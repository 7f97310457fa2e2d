"""Moving: a request out of one engine's structures and into another's.

Keys and values travel by block, those that a group's samples share once. A sample in the middle of
its prefill leaves them behind, and so do all where the other cache is cut otherwise or is full:
then they are computed again from the tokens. Either way the next token is the same.
"""

from plait.engines.moved import Moved, MovedKv, MovedSample
from plait.engines.protocol import ModelShape
from plait.engines.torch.kv import KV
from plait.engines.torch.schedule import Scheduler
from plait.engines.torch.sequence import Request


def pack(request: Request, shape: ModelShape, kv: KV | None) -> Moved:
    """All that is needed to go on with ``request`` elsewhere; its cache content if ``kv``."""
    places: dict[int, int] = {}
    samples = []
    for s in request.sequences:
        held = s.blocks[: -(-s.n_cached // kv.block_size)] if kv and s.n_todo == 1 else []
        samples.append(
            MovedSample(
                tokens=tuple(s.tokens[s.n_prompt :]),
                logprobs=tuple(s.logprobs),
                topk=tuple(s.topk),
                stop_reason=s.reason,
                blocks=tuple(places.setdefault(block, len(places)) for block in held),
            )
        )
    return Moved(
        op=request.op,
        shape=shape,
        samples=tuple(samples),
        prompt_logprobs=tuple(request.prompt.logprobs),
        prompt_topk=tuple(request.prompt.topk),
        prompt_targets=tuple(request.prompt.targets),
        prompt_draws=tuple(request.prompt.draws),
        n_scored=request.prompt.n_scored,
        kv=_pack_kv(kv, list(places)) if kv and places else None,
    )


def unpack(moved: Moved, request: Request, scheduler: Scheduler, kv: KV) -> None:
    """Bring a fresh ``request`` of the same operation to where ``moved`` left it, and queue it."""
    prompt = request.prompt
    prompt.logprobs += moved.prompt_logprobs
    prompt.topk += moved.prompt_topk
    prompt.targets[:] = moved.prompt_targets
    prompt.draws += moved.prompt_draws
    prompt.n_scored = moved.n_scored
    brought = {}
    for s, m in zip(request.sequences, moved.samples, strict=True):
        s.tokens += m.tokens
        s.logprobs += m.logprobs
        s.topk += m.topk
        s.reason = m.stop_reason
        for token in m.tokens if s.scan else ():
            s.scan.push(token)
        if m.blocks and _fits(moved.kv, kv):
            brought[s] = m.blocks
        elif s.reason is None:
            scheduler.add(s)
    if brought and (blocks := scheduler.adopt(brought, moved.kv.n_blocks)):
        kv.load(blocks, moved.kv.content)


def _pack_kv(kv: KV, blocks: list[int]) -> MovedKv:
    return MovedKv(
        n_blocks=len(blocks),
        block_size=kv.block_size,
        dtype=str(kv.dtype),
        content=kv.dump(blocks),
    )


def _fits(moved: MovedKv, kv: KV) -> bool:
    return (moved.block_size, moved.dtype) == (kv.block_size, str(kv.dtype))
