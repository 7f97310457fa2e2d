"""Layout: where everything of a launch lies. Described for users in
``docs/guide/run-directory.md``."""

from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class JobLayout:
    """Paths of one job: ``LAUNCH/jobs/NAME``."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.root / "samples.jsonl"

    @property
    def environment_log(self) -> Path:
        """What a service's user's environment prints."""
        return self.root / "environment.log"

    @property
    def adapter(self) -> Path:
        return self.root / "adapter"


@dataclass(frozen=True, slots=True)
class LaunchLayout:
    """Paths of one launch."""

    root: Path

    @property
    def info(self) -> Path:
        return self.root / "launch.json"

    @property
    def store(self) -> Path:
        return self.root / "store.db"

    @property
    def decisions(self) -> Path:
        return self.root / "decisions.jsonl"

    @property
    def workers(self) -> Path:
        return self.root / "workers.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def trace(self) -> Path:
        return self.root / "trace.json"

    @property
    def report(self) -> Path:
        return self.root / "report.png"

    def job(self, name: str) -> JobLayout:
        """Paths of a job; ConfigError if its name would leave the directory."""
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ConfigError(
                f"job name {name!r} is no directory name: use letters, digits, - and _"
            )
        return JobLayout(self.root / "jobs" / name)

    def job_names(self) -> list[str]:
        """Jobs that have a directory, by name."""
        jobs = self.root / "jobs"
        return sorted(p.name for p in jobs.iterdir() if p.is_dir()) if jobs.is_dir() else []
