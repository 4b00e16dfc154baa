"""Loops over layers, as ``jax.lax.scan`` makes them, cut by trips into parts for stages.

    narrow      stacks whose rows are only read in a narrower type are converted before the loop
    loops       what a loop takes and writes by the number of its trip
    rows        which values of the program have a row a layer, as factor rules tell
    shares      into how many parts each loop is cut, on which stages
    write       the program anew: a loop a part, values of rows as parts
    split       all of it; what cannot be cut, with the line
    parts       how an array of the user lies in the program behind it

Nothing here knows weights, gradients or optimizers: what a loop reads or writes by rows has rows,
and so has what is made of that row by row.
"""
