"""The fallback: models that our own forward does not know, run through ``transformers``."""
