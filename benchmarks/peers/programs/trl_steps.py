"""Steps of the real ``trl.GRPOTrainer``; runs in TRL's environment.

    trl_steps.py MODEL_DIR PROMPTS.json STEPS SAMPLES NEW_TOKENS RANK BATCH

Prints one JSON line: seconds of each step and tokens of each batch.
"""

import json
import os
import sys
import tempfile
import time
import zlib

import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class Clock(TrainerCallback):
    """When each step began and ended."""

    def __init__(self):
        self.started, self.seconds = 0.0, []

    def on_step_begin(self, *args, **kwargs):
        self.started = self.started or time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        now = time.perf_counter()
        self.seconds.append(now - self.started)
        self.started = now


def reward(completions):
    """As ``benchmarks.peers.rewards.by_text``."""
    texts = [c[0]["content"] for c in completions]
    return [zlib.crc32(t.encode()) % 1000 / 1000 for t in texts]


def main():
    model_dir, prompts_file, *numbers = sys.argv[1:]
    steps, samples, new_tokens, rank, batch = map(int, numbers)
    with open(prompts_file, encoding="utf-8") as file:
        prompts = json.load(file)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    clock, lengths = Clock(), []

    def counted(prompts, completions, completion_ids, **_):
        rendered = [tokenizer.apply_chat_template(p, add_generation_prompt=True) for p in prompts]
        ids = [r["input_ids"] if not isinstance(r, list) else r for r in rendered]
        lengths.append(sum(map(len, completion_ids)) + sum(map(len, ids)))
        return reward(completions)

    args = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=len(prompts) * samples // batch,
        num_generations=samples,
        max_completion_length=new_tokens,
        generation_kwargs={"min_new_tokens": new_tokens},
        max_steps=steps,
        beta=0.0,
        learning_rate=1e-5,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        shuffle_dataset=False,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32),
        args=args,
        reward_funcs=counted,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": p}]} for p in prompts]
        ),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"),
        callbacks=[clock],
    )
    trainer.train()
    print(json.dumps({"seconds": clock.seconds, "tokens": lengths}))


if __name__ == "__main__":
    main()
