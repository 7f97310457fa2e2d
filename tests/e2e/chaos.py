"""Chaos: four clients train while processes of the service are killed at random moments.

What the clients were answered and what they end up with is compared, bit for bit, with the same
scripts undisturbed.
"""

import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from served import UP_S, Served, kill
from tinker_client import Progress, TinkerClient

N_CLIENTS = 4
SAMPLE_EVERY = 3
"""Steps between two samplers of a client."""
MOMENT_S = 0.5
"""A kill comes up to so long after the step that it was to come after."""

Target = Literal["api", "worker", "all"]
TARGETS: tuple[Target, ...] = ("api", "worker", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a client had at its end."""

    answers: tuple[Any, ...]
    files: dict[str, bytes]


def run(
    directory: Path, model: str, *arguments: str, n_steps: int, kills: int, seed: int
) -> tuple[list[Ended], dict[Target, int]]:
    """Serve, train four clients for ``n_steps`` steps each, kill ``kills`` times meanwhile."""
    rng, progress = random.Random(seed), Progress()
    targets = [TARGETS[i % len(TARGETS)] for i in range(kills)]
    rng.shuffle(targets)
    done: dict[Target, int] = dict.fromkeys(TARGETS, 0)
    ends: list[Ended | None] = [None] * N_CLIENTS
    with Served(directory, "--model", model, "--deterministic", *arguments) as served:

        def drive(index: int) -> None:
            try:
                ends[index] = _script(served, model, index, n_steps, progress)
            except BaseException as error:
                progress.fail(error)

        threads = [threading.Thread(target=drive, args=(i,), daemon=True) for i in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        total = N_CLIENTS * n_steps
        for i, target in enumerate(targets):
            progress.until(total * i // kills)
            time.sleep(rng.uniform(0.0, MOMENT_S))
            _strike(served, target, rng)
            done[target] += 1
        progress.until(total)
        for thread in threads:
            thread.join()
        progress.until(total)
    return [end for end in ends if end is not None], done


def _strike(served: Served, target: Target, rng: random.Random) -> None:
    """Kill; a worker as soon as there is one, after a restart."""
    assert served.alive, served.log.read_text()
    if target == "worker":
        deadline = time.monotonic() + UP_S
        while not (workers := served.workers()):
            assert served.alive, served.log.read_text()
            assert time.monotonic() < deadline, "no worker came"
            time.sleep(0.01)
        kill(rng.choice(workers))
        return
    served.kill(everything=target == "all")
    served.start()


def _script(served: Served, model: str, index: int, n_steps: int, progress: Progress) -> Ended:
    client = TinkerClient(served.url, served.key)
    answers: list[Any] = []
    try:
        client.open(model, rank=4, seed=index)
        for step in range(n_steps):
            first, second = client.number(), client.number()
            later = client.gradient(1000 * index + 2 * step + 1, seq=second)
            before = client.gradient(1000 * index + 2 * step, seq=first)
            stepped = client.step()
            answers += [client.result(promise) for promise in (before, later, stepped)]
            if step % SAMPLE_EVERY == SAMPLE_EVERY - 1:
                answers.append(client.sample(client.sampler(step), seed=step))
            progress.one_more()
        path = client.save("final")
        client.finish()
    finally:
        client.close()
    return Ended(answers=tuple(answers), files=files_of(served.directory, path))


def files_of(directory: Path, path: str) -> dict[str, bytes]:
    """Of a checkpoint."""
    model_id, section, name = path.removeprefix("tinker://").split("/")
    (folder,) = (directory / "checkpoints" / model_id.replace(":", ".") / section).glob(f"{name}@*")
    return {file.name: file.read_bytes() for file in folder.iterdir()}
