"""A program in micro-batches and stages, as tasks: functions that run on one stage each.

    source      the program before: its parts, what its loop carries
    tasks       which ops are one task: those that agree in time, stage and level
    split       all tasks of a program, and the stage of each of its values
    outline     a task becomes a function
    write       ``main`` becomes a list of calls and transfers, those of a micro-batch in the loop
    program     what such a module says, checked: each value is read on a stage that has it

Nothing here knows layers, losses or optimizers.
"""
