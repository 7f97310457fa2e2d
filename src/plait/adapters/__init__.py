"""Adapters on disk: PEFT safetensors in and out."""
