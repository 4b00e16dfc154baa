/// One `bind_*` function per part of the core; `module.cpp` calls them all.
#pragma once

#include <nanobind/nanobind.h>

namespace autoshard {

void bind_cluster(nanobind::module_& module);
void bind_importer(nanobind::module_& module);
void bind_program(nanobind::module_& module);
void bind_cost(nanobind::module_& module);
void bind_planning(nanobind::module_& module);
void bind_solver(nanobind::module_& module);
void bind_symbolic(nanobind::module_& module);
void bind_storage(nanobind::module_& module);

}  // namespace autoshard
