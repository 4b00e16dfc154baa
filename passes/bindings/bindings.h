/// One `bind_*` function per part of the core; `module.cpp` calls them all.
#pragma once

#include <nanobind/nanobind.h>

namespace autoshard {

void bind_planning(nanobind::module_& module);
void bind_solver(nanobind::module_& module);

}  // namespace autoshard
