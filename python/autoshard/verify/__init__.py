"""What the compilers really made of a plan.

``shardy_collectives`` counts what a plan communicates without compiling, ``hlo_collectives``
reads what a compiled program has, ``compiled`` compares both with the plan.
"""
