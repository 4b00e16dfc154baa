#include <nanobind/nanobind.h>

#include "bindings/bindings.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ core of autoshard: plain structs in, decisions out.";
  autoshard::bind_planning(module);
  autoshard::bind_solver(module);
}
