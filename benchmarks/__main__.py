"""``python -m benchmarks list`` or ``python -m benchmarks NAME [NAME …]``."""

import sys

from benchmarks.figure import run_figure
from benchmarks.names import FIGURES


def main() -> int:
    names = sys.argv[1:]
    if not names or names == ["list"]:
        for figure in FIGURES.values():
            bar = "shown" if figure.at_least is None else f"≥{figure.at_least:g}"
            print(f"{figure.name:4} {figure.minutes:5.1f} min  {bar:>6}  {figure.what}")
        return 0
    unknown = [n for n in names if n not in FIGURES]
    if unknown:
        print(f"unknown figure {unknown[0]}: known are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    met = [run_figure(FIGURES[n]) for n in names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
