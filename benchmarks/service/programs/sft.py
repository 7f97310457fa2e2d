"""Supervised fine-tuning by the cookbook on a file of conversations; in the cookbook's environment.

sft.py '{"url": …, "model": …, "file": …, "log": …, "steps": 4}'   (TINKER_API_KEY is set)
"""

import asyncio
import json
import sys

from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

TOLD = json.loads(sys.argv[1])

dataset = FromConversationFileBuilder(
    file_path=TOLD["file"],
    common_config=ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=TOLD["model"],
        renderer_name="role_colon",
        max_length=256,
        batch_size=4,
    ),
)
asyncio.run(
    train.main(
        train.Config(
            log_path=TOLD["log"],
            model_name=TOLD["model"],
            recipe_name="sft",
            renderer_name="role_colon",
            dataset_builder=dataset,
            learning_rate=1e-3,
            lora_rank=8,
            num_epochs=10,
            base_url=TOLD["url"],
            save_every=2,
            eval_every=0,
            max_steps=TOLD["steps"],
        )
    )
)
