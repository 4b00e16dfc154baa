"""What the compilers really made of a plan.

A plan beside its compiled program, ``plan.verify()`` and ``autoshard-verify`` (docs/use/verify.md):

    verification        all of it: compile, compare, say what differs
    ahead_of_time       compile for devices that are not here, by ``compile_process``
    targets             what a cluster is to a compiler
    described_devices   the devices of a cluster that is not here
    usable_memory       bytes that the TPU compiler lets a program use

What the text of a compiled program says (docs/results/step_estimate.md):

    hlo_program         computations, trips of loops, source lines
    hlo_collectives     every collective and its devices
    collective_parts    what the compiler meant by each, array by array
    collective_seconds  how long one takes, by the cluster's formulas
    instruction_costs   how long other instructions take, where the compiler does not say
    instruction_work    what one instruction does: compute, copy, or nothing
    step_time           how long a step takes
    schedule/           the same with what runs beside what, simulated
    matching            planned collectives beside compiled ones
    rematerialization   values made whole on every device

Every compile of ``autoshard.jit``, without a cluster:

    shardy_collectives  what a plan communicates, counted before compiling
    compiled            differences of that and of ``hlo_collectives``, a sentence each
"""
