"""How the sizes of a program's dims hang together, op by op.

Every op says which sizes are the same, which are sums or products of others, and which attributes
hold sizes. Of an op that has no rule here all sizes stay what they are.

    program        reads a module: functions, loops, branches; finds the rule of every op
    shapes         what rules write down
    elements       rules of elementwise ops, constants, custom calls
    views          reshapes, transposes and the like
    parts          slices, pads, gathers, scatters
    contractions   dots, sums
    windows        convolutions, pools
"""
