"""From a planned module to the form that the partitioner keeps.

``planned`` reads what planning has written, ``pin`` writes the constraints, and the two forms,
Shardy and GSPMD, say what one constraint looks like.
"""
