"""Whether what a plan computes is right: ``plan.check()``, docs/use/check.md.

    check        all of it: make the program small, run it in two forms, say what differs

A planned program made small:

    small        all of these
    sample       where ops repeat, one of each kind
    part         some ops of a program, as a program
    trips        fewer trips of loops
    shrink       fewer devices
    sizes        sizes that hang together
    shapes       which sizes of a program do, a rule an op
    scale        smaller sizes
    finite       no roots of numbers below 0

Run twice:

    plain        the form for one device
    widen        both in double precision
    inputs       arguments
    exact        values that must be equal bit for bit
    compare      what two runs gave
    run          both forms in a process, ``run_process``
    locate       the first op that is wrong
"""
