"""The one door to jaxlib's MLIR and to JAX's internals.

Checked on jax/jaxlib 0.10.2 (Python 3.11) and 0.12.0.1 (Python 3.12). Nothing outside this
folder imports ``jaxlib.mlir`` or ``jax._src``.
"""

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

from autoshard.ir.diagnostics import warn as warn
from autoshard.ir.locations import op_name as op_name
from autoshard.ir.locations import place as place
from autoshard.ir.locations import users_place as users_place
from autoshard.ir.module import new_context as new_context
from autoshard.ir.module import parse_bytes as parse_bytes
from autoshard.ir.module import parse_file as parse_file
from autoshard.ir.module import parse_given as parse_given
from autoshard.ir.module import print_module as print_module
from autoshard.ir.module import read_bytes as read_bytes
from autoshard.ir.types import element_bits as element_bits

__all__ = ["chlo", "mlir", "sdy", "stablehlo"]
