"""A program in micro-batches and stages, as tasks: functions that run on one stage each.

    source      the program before: its parts, what its loop carries
    numbers     the same as the core knows it, which finds tasks (passes/pipeline/tasks.h)
    tasks       what the core asks of ops
    split       all tasks of a program, their calls, transfers, and the stage of each value
    write       ``main`` becomes a list of calls and transfers, those of a micro-batch in the loop
    program     what such a module says, checked: each value is read on a stage that has it

Nothing here knows layers, losses or optimizers.
"""
