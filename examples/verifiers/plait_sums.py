"""A ``verifiers`` environment (0.4): sums in words, asked of a model that plait serves.

It knows nothing of plait: ``vf-eval`` sends each task to an OpenAI-compatible URL, and plait's own
is one. See README.md beside it.
"""

import random
import re

import verifiers.v1 as vf

NUMBER = re.compile(r"-?\d+")


class SumData(vf.TaskData):
    """One sum."""

    answer: int


class Sum(vf.Task[SumData]):
    """Pays 1 if the last number of the answer is the sum."""

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        numbers = NUMBER.findall(trace.last_reply or "")
        return float(bool(numbers) and int(numbers[-1]) == self.data.answer)

    @vf.metric
    async def a_number(self, trace: vf.Trace) -> float:
        return float(bool(NUMBER.search(trace.last_reply or "")))


class SumsConfig(vf.TasksetConfig):
    num_tasks: int = 8
    seed: int = 0


class Sums(vf.Taskset[Sum, SumsConfig]):
    """``num_tasks`` sums, the same for the same seed."""

    def load(self) -> list[Sum]:
        draw = random.Random(self.config.seed)
        pairs = [(draw.randint(2, 20), draw.randint(2, 20)) for _ in range(self.config.num_tasks)]
        return [
            Sum(
                SumData(prompt=f"What is {a} + {b}? Reply with the number.", answer=a + b),
                self.config.task,
            )
            for a, b in pairs
        ]


__all__ = ["Sums"]
