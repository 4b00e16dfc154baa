"""Configuration of lit, see https://llvm.org/docs/CommandGuide/lit.html.

``lit test/lit`` uses autoshard-opt and filecheck of the environment that lit itself runs in, warm;
with ``--param cold`` each RUN line starts them anew, as users do.
"""

import os
import sys
from importlib.metadata import version
from pathlib import Path

import lit.formats

# ruff: noqa: F821  (lit defines config and lit_config)
config.name = "autoshard"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.excludes = ["Inputs"]
config.test_source_root = str(Path(__file__).parent)
config.test_exec_root = str(Path(__file__).parents[2] / "build" / "lit")
config.substitutions.append(("%python", sys.executable))
# For what only this release of jaxlib does: REQUIRES: jaxlib-0.10
jaxlib_release = ".".join(version("jaxlib").split(".")[:2])
config.available_features.add(f"jaxlib-{jaxlib_release}")

tools = str(Path(sys.executable).parent)
config.environment["PATH"] = os.pathsep.join([tools, os.environ["PATH"]])
# lit runs its own diff with a warning about its packages.
config.environment["PYTHONWARNINGS"] = "error,ignore:can't resolve package:ImportWarning"
for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LANG", "LC_ALL"):
    if name in os.environ:
        config.environment[name] = os.environ[name]
if "cold" not in lit_config.params:
    sys.path.insert(0, config.test_source_root)
    import warm_tools

    warm = Path(config.test_exec_root) / "warm"
    warm_tools.start(warm, config.environment)
    config.environment["PATH"] = os.pathsep.join([str(warm), config.environment["PATH"]])
