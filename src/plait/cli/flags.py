"""Flags of several verbs: how a launch uses the machine (``runtime.settings``)."""

from typing import Annotated

import typer

Policy = Annotated[
    str | None,
    typer.Option(
        help="How the jobs share the machine; default: plait, or what the launch had.",
        show_default=False,
    ),
]
Cores = Annotated[int, typer.Option(help="Cores to use; 0 is all.", min=0)]
Device = Annotated[
    str,
    typer.Option(help="auto, cpu, cuda or cuda:N; default auto: CUDA if any.", show_default=False),
]
Dtype = Annotated[
    str,
    typer.Option(help="auto, fp32 or bf16; default auto: bf16 on CUDA.", show_default=False),
]
KvBlocks = Annotated[int, typer.Option(help="Cache blocks of 4 tokens; 0 sizes them.", min=0)]
RolloutWorkers = Annotated[
    int, typer.Option(help="Processes that roll out, default 1.", min=0, show_default=False)
]
TrainingWorkers = Annotated[
    int, typer.Option(help="Processes that train, default 1.", min=0, show_default=False)
]
StepLimit = Annotated[
    float,
    typer.Option(
        help="Seconds (10 or more) in which a worker must get on, or is replaced; default 1800.",
        min=0,
        show_default=False,
    ),
]
Lean = Annotated[
    bool, typer.Option("--lean", help="Memory before speed: about a quarter less of it.")
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="The same bits every time, alone or shared.")
]
Recompute = Annotated[
    bool, typer.Option("--recompute", help="Train in less memory: compute each layer twice.")
]
