"""A run driven from a script with the Tinker SDK: pip install tinker==0.38.0
(0.24 and 0.25 work as well: they return clients at once, without .result())

    export TINKER_BASE_URL=http://127.0.0.1:8787 TINKER_API_KEY=tml-…
    python examples/401_tinker_script.py tiny

The reward is how many of a sample's tokens are even: a model learns that within a few steps.
"""

import sys

import tinker
from tinker import types

PROMPT = [1, 2, 3, 4]
STEPS, SAMPLES, TOKENS = 8, 16, 12


def reward(tokens):
    return sum(t % 2 == 0 for t in tokens) / len(tokens)


def datum(sample, advantage):
    whole = PROMPT + list(sample.tokens)
    before = [0.0] * (len(PROMPT) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": whole[1:],
            "logprobs": before + list(sample.logprobs),
            "advantages": before + [advantage] * len(sample.tokens),
        },
    )


def main():
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=sys.argv[1], rank=8, seed=0).result()
    params = types.SamplingParams(max_tokens=TOKENS, temperature=1.0, stop=[])
    for step in range(STEPS):
        sampler = training.save_weights_and_get_sampling_client().result()
        prompt = types.ModelInput.from_ints(PROMPT)
        drawn = sampler.sample(prompt, num_samples=SAMPLES, sampling_params=params)
        samples = drawn.result().sequences
        rewards = [reward(s.tokens) for s in samples]
        mean = sum(rewards) / len(rewards)
        data = [datum(s, r - mean) for s, r in zip(samples, rewards, strict=True)]
        gradient = training.forward_backward(data, "importance_sampling")
        update = training.optim_step(types.AdamParams(learning_rate=3e-3))
        gradient.result()
        update.result()
        print(f"step {step + 1}: reward {mean:.3f}", flush=True)
    print(training.save_weights_for_sampler("even").result().path)


main()
