"""Chat: the tokens that end the policy's turn, say something, and give the policy the word again.

A conversation is never re-tokenised, because other tokens than the sampled ones spoil training:
what the policy sampled stays as it is, and only what follows it is made here. For a chat model that
is whatever its template writes after an assistant's message; for a model without a template it is
the text on a line of its own. The result is the same as the template's rendering of the whole
conversation, up to the policy's own choice of tokens for its text.
"""

from plait.core.errors import ModelError
from plait.models.tokenizer import Tokenizer

MARK = "PLAITMARK"
"""Stands for the assistant's message while the template is rendered; templates trim spaces, so it
has none, and it is a word that no template contains."""


def continue_turn(
    tokenizer: Tokenizer, sampled: tuple[int, ...], text: str, *, role: str = "user"
) -> tuple[int, ...]:
    """Tokens to append after ``sampled`` (its end token, if it drew one, included)."""
    if not tokenizer.has_chat_template:
        return tokenizer.encode(f"\n{text}\n")
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": MARK},
        {"role": role, "content": text},
    ]
    _, found, after = tokenizer.render(messages).partition(MARK)
    if not found:
        raise ModelError(
            f"the chat template of {tokenizer.model_dir.name} hides the assistant's messages: "
            "use a model whose template shows them, or a single-turn environment"
        )
    tokens = tokenizer.encode(after)
    if sampled and tokens and sampled[-1] == tokens[0]:
        return tokens[1:]  # the policy has ended its turn itself
    return tokens
