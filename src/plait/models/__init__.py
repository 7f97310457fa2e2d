"""Models by name: where a base model's files lie, and its tokenizer. Never imports torch."""
