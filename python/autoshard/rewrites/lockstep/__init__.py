"""Equal stages of a pipeline as one program, which all of them run in lockstep.

    one_stage   the step with the layers of one stage, of each loop over layers
    steps       which loop over micro-batches does what
    write       these loops, in place of the one that did all
    check       proof that stages agree on what they hand out
    step        all of it
    seconds     what the planned program takes, with what stages send each other
    calls       what stages say to each other
    export      behind planning: the program of one stage as that of all

Between these the program is that of one stage, so that everything else, as the search for shardings
inside of a stage, its memory and its seconds, is as for any program.
"""
