"""What the user fixed, whatever form it came in, as ``autoshard.pin`` over one mesh.

``op_strategies`` writes strategies of ops as marks, ``written_shardings`` reads the shardings of
Shardy and GSPMD, ``wishes`` finds the mesh that expresses all that was found, and ``write`` goes
over the module.
"""
