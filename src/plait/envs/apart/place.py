"""Place: where an environment's process runs, and what it sees of the machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MEMORY_BYTES = 8 * 2**30
"""Private memory of one process, as a grader's."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
"""What a ``Tokenizer`` reads of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Of one source; ``sandboxed`` unless its code is the caller's own."""

    sys_path: Sequence[str]
    """Where its modules lie."""
    model_dir: Path
    """Its tokenizer's."""
    log: Path | None = None
    """What the user's code prints; none: it is dropped."""
    sandboxed: bool = True
    memory_bytes: int = MEMORY_BYTES

    @property
    def reads(self) -> list[str]:
        """Directories, and files that the model's are links to (a hub's cache is made so)."""
        files = (self.model_dir / name for name in TOKENIZER_FILES)
        links = [str(file.resolve()) for file in files if file.is_symlink()]
        return [*self.sys_path, str(self.model_dir.resolve()), *links]
