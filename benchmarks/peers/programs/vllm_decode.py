"""Decode rate of vLLM's CPU build with adapters in the batch; runs in vLLM's environment.

    vllm_decode.py MODEL_DIR PROMPTS.json NEW_TOKENS ADAPTER_DIR …

Prints one JSON line: seconds of the median decode step by batch size (prompts come by batch size).
"""

import json
import os
import sys
import time
from statistics import median

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    HF_HUB_OFFLINE="1",
)

import torch
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

MAX_RANK = 32


def main():
    model_dir, prompts_file, new_tokens, *adapters = sys.argv[1:]
    with open(prompts_file, encoding="utf-8") as file:
        batches = json.load(file)
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    lora = {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": MAX_RANK}
    llm = LLM(
        model=model_dir,
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        **(lora if adapters else {}),
    )
    engine = llm.llm_engine
    params = SamplingParams(max_tokens=int(new_tokens), ignore_eos=True, temperature=1.0)
    loras = [LoRARequest(f"a{i}", i + 1, path) for i, path in enumerate(adapters)]
    found = {}
    for n, prompts in batches.items():
        for i, tokens in enumerate(prompts):
            request = loras[i % len(loras)] if loras else None
            engine.add_request(
                f"{n}-{i}", {"prompt_token_ids": tokens}, params, lora_request=request
            )
        seconds, running = [], True
        while running:
            start = time.perf_counter()
            outputs = engine.step()
            seconds.append(time.perf_counter() - start)
            running = engine.has_unfinished_requests()
            del outputs
        found[n] = median(seconds[1:-1])
    print(json.dumps({"seconds": found, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
