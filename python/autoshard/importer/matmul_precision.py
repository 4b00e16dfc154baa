"""How compilers multiply float32: matmuls whose units are narrower.

TPUs round operands to bfloat16 at JAX's default precision. XLA casts an operand before it is
gathered, and what is kept for the backward half is the cast, too: to a plan it is an op, which the
module does not have. A matmul that asks for more is several products of parts of its operands.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.compilers.compiler import Compiler
from autoshard.importer.work import MATRIX_OPS
from autoshard.ir import mlir

_DOTS = MATRIX_OPS - {"stablehlo.convolution"}


@dataclass(frozen=True, slots=True)
class MatmulPrecision:
    """What a compiler does; without one nothing."""

    rounds: bool = False
    """Operands are rounded at the default precision."""
    high: float = 1.0
    """Products at ``jax.lax.Precision.HIGH``."""
    highest: float = 1.0
    """Products at ``HIGHEST``."""

    @classmethod
    def of(cls, compiler: Compiler | None) -> MatmulPrecision:
        """As its answers say."""
        if compiler is None:
            return cls()
        high, highest = (compiler.answers[f"matmul.{name}_passes"] for name in ("high", "highest"))
        return cls(compiler.does("matmul.rounds_operands"), float(high), float(highest))

    def rounds_operands(self, op: mlir.Operation) -> bool:
        """Is it a matmul whose operands in float32 are rounded? A convolution computes the casts
        in its kernel."""
        if not self.rounds or op.name not in _DOTS or "algorithm" in op.attributes:
            return False
        return _asked(op) == "DEFAULT"

    def products(self, op: mlir.Operation) -> float:
        """How often a matmul multiplies; 1 of other ops."""
        if op.name not in MATRIX_OPS or not any(map(_is_float32, op.operands)):
            return 1.0
        return {"HIGH": self.high, "HIGHEST": self.highest}.get(_asked(op), 1.0)


def _asked(op: mlir.Operation) -> str:
    """The precision that a matmul asks for: ``DEFAULT``, ``HIGH`` or ``HIGHEST``."""
    if "precision_config" not in op.attributes:
        return "DEFAULT"
    texts = [str(each) for each in mlir.ArrayAttr(op.attributes["precision_config"])]
    found = [name for name in ("HIGHEST", "HIGH") if any(f" {name}>" in text for text in texts)]
    return (*found, "DEFAULT")[0]


def _is_float32(value: mlir.Value) -> bool:
    type_ = value.type
    return isinstance(type_, mlir.RankedTensorType) and isinstance(type_.element_type, mlir.F32Type)
