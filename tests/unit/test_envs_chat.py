"""plait.envs.chat: appended tokens are what the template writes, and nothing is tokenised twice."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Fast

from plait.core.errors import ModelError
from plait.envs.chat import continue_turn
from plait.models.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HIDING = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def chat_model(path: Path, template: str | None) -> Tokenizer:
    """A byte tokenizer with one merge across a turn's end, and ChatML's special tokens."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab["ab"] = len(vocab)
    fast = Fast(models.BPE(vocab=vocab, merges=[("a", "b")]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    fast.save(str(path / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": template}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(path)


def check_against_template(tokenizer: Tokenizer, reply: str, text: str) -> None:
    """Prompt + what was sampled + what was appended = the template's rendering of it all."""
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    (end,) = (t for t in tokenizer.encode("<|im_end|>"))
    prompt = tokenizer.chat(messages)
    whole = tokenizer.chat(
        [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": text}]
    )
    ended = (*tokenizer.encode(reply), end)
    assert prompt + ended + continue_turn(tokenizer, ended, text) == whole
    cut_off = tokenizer.encode(reply)
    assert prompt + cut_off + continue_turn(tokenizer, cut_off, text) == whole


@pytest.mark.parametrize("text", ["Too low. Try again.", "a\n\n b", "", "  spaces  ", "PLAITMARK"])
def test_chatml(tmp_path: Path, text: str) -> None:
    check_against_template(chat_model(tmp_path, CHATML), "6", text)


def test_sampled_tokens_are_kept_however_the_text_would_be_tokenised(tmp_path: Path) -> None:
    tokenizer = chat_model(tmp_path, CHATML)
    a, b = tokenizer.encode("a") + tokenizer.encode("b")
    assert (a, b) != tokenizer.encode("ab")
    appended = continue_turn(tokenizer, (a, b), "no")
    assert appended == continue_turn(tokenizer, tokenizer.encode("ab"), "no")


def test_another_end_token_is_not_mistaken_for_the_turns_end(tmp_path: Path) -> None:
    tokenizer = chat_model(tmp_path, CHATML)
    sampled = (*tokenizer.encode("6"), *tokenizer.encode("<|endoftext|>"))
    appended = continue_turn(tokenizer, sampled, "no")
    assert tokenizer.decode(appended, skip_special=False).startswith("<|im_end|>\n<|im_start|>user")


def test_roles(tmp_path: Path) -> None:
    tokenizer = chat_model(tmp_path, CHATML)
    appended = continue_turn(tokenizer, (), "found", role="tool")
    assert "<|im_start|>tool\nfound<|im_end|>" in tokenizer.decode(appended, skip_special=False)


def test_plain_text(tmp_path: Path) -> None:
    tokenizer = chat_model(tmp_path, None)
    assert continue_turn(tokenizer, (1, 2), "no") == tokenizer.encode("\nno\n")


def test_a_template_without_the_assistants_messages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="hides the assistant's messages"):
        continue_turn(chat_model(tmp_path, HIDING), (), "no")


@pytest.mark.slow
def test_smollm2() -> None:
    from plait.models.registry import resolve

    tokenizer = Tokenizer(resolve("smollm2-135m"))
    for reply in ("6", "The answer is 6.", "x\n"):
        for text in ("Too low. Try again.", "  a\n\n", "{}"):
            check_against_template(tokenizer, reply, text)
