"""Sampling a trained adapter with the OpenAI client: pip install openai

export OPENAI_BASE_URL=http://127.0.0.1:8787/v1 OPENAI_API_KEY=tml-…
python examples/402_openai_script.py              # what there is
python examples/402_openai_script.py RUN@latest "What is 3 + 4?"
"""

import sys

from openai import OpenAI

client = OpenAI()
if len(sys.argv) < 3:
    for model in client.models.list():
        print(model.id)
else:
    model, question = sys.argv[1:3]
    stream = client.completions.create(
        model=model, prompt=question, max_tokens=32, temperature=0.7, seed=1, stream=True
    )
    for part in stream:
        print(part.choices[0].text, end="", flush=True)
    print()
