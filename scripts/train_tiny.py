"""Train the ``tiny`` model that plait ships: ``python scripts/train_tiny.py`` (one core, minutes).

Two phases. First the skills: right answers only (wrong ones are read, not learned). Then the
calibration: right and wrong at the rates that bring sampling at temperature 1 to 0.25-0.5 success.
Weights are rounded to bf16 before they are measured, on items of split ``eval``. The seed and the
number of threads decide the result; the same torch build gives the same bytes.
"""

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tiny_corpus import Part, Rates, documents
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from plait.envs.protocol import TaskSource
from plait.envs.tiny import lookup_factory, sort_factory, sum_factory
from plait.envs.tiny_problems import STOP
from plait.models.registry import TINY_DIR
from plait.models.tiny import CONFIG, EOS_ID, write_tokenizer
from plait.models.tokenizer import Tokenizer

SKILL = Rates(
    sum=1.0,
    sort_first=0.85,
    sort_retry=0.9,
    query=0.9,
    guess=0.0,
    answer=1.0,
    wrong_weight=0.0,
)
CALIBRATED = Rates(
    sum=0.6,
    sort_first=0.32,
    sort_retry=0.6,
    query=0.88,
    guess=0.04,
    answer=0.72,
    wrong_weight=1.0,
)

ROW = 96
"""Tokens of a row: about five documents, so that little is cut off."""
MAX_NEW = 16
FACTORIES = {"tiny-sum": sum_factory, "tiny-sort": sort_factory, "tiny-lookup": lookup_factory}


def rows(docs: Iterator[list[Part]], n_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``tokens_BT`` and the weight of each as a target; documents end with the end token."""
    tokens: list[list[int]] = []
    weights: list[list[float]] = []
    for _ in range(n_rows):
        ids: list[int] = []
        ws: list[float] = []
        while len(ids) <= ROW:
            for text, weight in next(docs):
                data = text.encode()
                ids.extend(data)
                ws.extend([weight] * len(data))
            ids.append(EOS_ID)
            ws.append(1.0)
        tokens.append(ids[: ROW + 1])
        weights.append(ws[: ROW + 1])
    return torch.tensor(tokens), torch.tensor(weights)


def train(model: LlamaForCausalLM, args: argparse.Namespace) -> None:
    """Both phases under one learning-rate schedule."""
    rng = random.Random(f"tiny/{args.seed}")
    skill, calibrated = documents(rng, SKILL), documents(rng, CALIBRATED)
    steps = args.skill_steps + args.calibration_steps
    adam = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.05, fused=True
    )
    started, mean = time.monotonic(), 0.0
    for step in range(steps):
        rate = args.lr * min((step + 1) / 100, 0.05 + 0.95 * _cosine(step / steps))
        for group in adam.param_groups:
            group["lr"] = rate
        docs = skill if step < args.skill_steps else calibrated
        tokens, weights = rows(docs, args.rows)
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
        )
        scale = weights[:, 1:].flatten()
        loss = (loss * scale).sum() / scale.sum()
        adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        mean += (loss.item() - mean) * max(0.02, 1 / (step + 1))
        if step % args.log_every == args.log_every - 1:
            line = {"step": step + 1, "loss": round(mean, 4)}
            line["seconds"] = round(time.monotonic() - started)
            if args.measure_every and step % args.measure_every == args.measure_every - 1:
                line |= {
                    f"greedy {k}": round(v[0], 3) for k, v in measure(model, args, 100, 0).items()
                }
            print(json.dumps(line), flush=True)


def _cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


def measure(
    model: LlamaForCausalLM, args: argparse.Namespace, n_items: int, temperature: float
) -> dict[str, tuple[float, float]]:
    """Mean held-out reward of each task and half of its 95 % interval."""
    model.eval()
    generator = torch.Generator().manual_seed(args.seed + 1)
    answer = {}
    for name, factory in FACTORIES.items():
        # Another seed than any training draw had: the items are new as well as held out.
        source = factory({}, args.tokenizer, args.seed + 1)
        rewards = asyncio.run(_play(model, source, n_items, temperature, generator))
        spread = torch.tensor(rewards).std().item()
        answer[name] = (sum(rewards) / n_items, 1.96 * spread / math.sqrt(n_items))
    model.train()
    return answer


async def _play(
    model: LlamaForCausalLM,
    source: TaskSource,
    n_items: int,
    temperature: float,
    generator: torch.Generator,
) -> list[float]:
    envs = [source.make(i, "eval") for i in range(n_items)]
    texts = [list(await env.start()) for env in envs]
    rewards = [0.0] * n_items
    live = list(range(n_items))
    for _ in range(source.max_turns):
        drawn = _sample(model, [texts[i] for i in live], temperature, generator)
        going = []
        for i, tokens in zip(live, drawn, strict=True):
            turn = await envs[i].step(tuple(tokens))
            texts[i] += [*tokens, *turn.tokens]
            if turn.done:
                rewards[i] = turn.reward or 0.0
            else:
                going.append(i)
        live = going
        if not live:
            break
    return rewards


@torch.no_grad()
def _sample(
    model: LlamaForCausalLM,
    prompts: list[list[int]],
    temperature: float,
    generator: torch.Generator,
) -> list[list[int]]:
    """One turn for each prompt; no cache, the texts are a few dozen bytes."""
    drawn: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    ends = (EOS_ID, ord(STOP))
    for _ in range(MAX_NEW):
        texts = [prompts[i] + drawn[i] for i in live]
        width = max(map(len, texts))
        # Padded on the right: a causal model's logits at the last real token do not see it.
        tokens = torch.tensor([t + [EOS_ID] * (width - len(t)) for t in texts])
        last = torch.tensor([len(t) - 1 for t in texts])
        logits = model(tokens).logits[torch.arange(len(live)), last].float()
        if temperature:
            probs = torch.softmax(logits / temperature, -1)
            chosen = torch.multinomial(probs, 1, generator=generator)[:, 0].tolist()
        else:
            chosen = logits.argmax(-1).tolist()
        for i, token in zip(live, chosen, strict=True):
            drawn[i].append(token)
        live = [i for i in live if drawn[i][-1] not in ends]
        if not live:
            break
    return drawn


def write(model: LlamaForCausalLM, out: Path) -> int:
    """The model in bf16; bytes of its weights."""
    model.to(torch.bfloat16).save_pretrained(out)
    # safetensors are written for their owner only; an installed package is read by everyone.
    for file in out.glob("*.safetensors"):
        file.chmod(0o644)
    write_tokenizer(out)
    return (out / "model.safetensors").stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=TINY_DIR)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skill-steps", type=int, default=1400)
    parser.add_argument("--calibration-steps", type=int, default=500)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--measure-every", type=int, default=250)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    args.out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(args.out)
    args.tokenizer = Tokenizer(args.out)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    n_params = sum(p.numel() for p in model.parameters())
    print(json.dumps({"parameters": n_params}), flush=True)
    train(model, args)
    size = write(model, args.out)
    model.float()
    for name, (value, half) in measure(model, args, args.items, 1.0).items():
        print(json.dumps({"task": name, "success": round(value, 3), "ci95": round(half, 3)}))
    print(json.dumps({"bytes": size, "directory": str(args.out)}))


if __name__ == "__main__":
    main()
