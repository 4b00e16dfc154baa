"""Choose one option per node of a cost network, under a memory limit, with a certificate."""

from autoshard.solver.checker import Report as Report
from autoshard.solver.checker import check_certificate as check_certificate
from autoshard.solver.checker import check_solution as check_solution
from autoshard.solver.iopddl import read_iopddl as read_iopddl
from autoshard.solver.iopddl import write_iopddl as write_iopddl
from autoshard.solver.problem import Problem as Problem
from autoshard.solver.solve import Certificate as Certificate
from autoshard.solver.solve import Solution as Solution
from autoshard.solver.solve import TracePoint as TracePoint
from autoshard.solver.solve import certify as certify
from autoshard.solver.solve import solve as solve
