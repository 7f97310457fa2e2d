"""Longest: the largest sample that a job can draw, for what must fit whatever comes."""

from plait.sim.spec import JobSpec, Lengths, RecordedStep


def most_tokens(lengths: Lengths) -> int:
    """The longest that can be drawn."""
    if lengths.drift > 0:
        return lengths.most
    if lengths.kind == "fixed":
        return min(lengths.most, max(lengths.least, round(lengths.median)))
    if lengths.kind == "empirical":
        return min(lengths.most, max(lengths.values, default=lengths.most))
    return lengths.most


def longest_sample(spec: JobSpec) -> int:
    """Tokens of the longest sample that a job can draw, prompt and all turns, or has recorded."""
    turns = max(1, len(spec.turns))
    result = spec.tool.result if spec.tool is not None else None
    returned = most_tokens(result) if result is not None else 0
    drawn = most_tokens(spec.prompt) + turns * most_tokens(spec.response) + (turns - 1) * returned
    return max(drawn, *map(_longest_recorded, spec.recorded)) if spec.recorded else drawn


def _longest_recorded(step: RecordedStep) -> int:
    own = zip(step.responses, step.results, strict=True)
    return max(step.prompts) + max(sum(turns) + sum(results) for turns, results in own)
