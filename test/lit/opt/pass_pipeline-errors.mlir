// RUN: not autoshard-opt --pass-pipeline='builtin.module(cse' %s 2>&1 | filecheck %s --check-prefix=OPEN
// RUN: not autoshard-opt --pass-pipeline='cse,,canonicalize' %s 2>&1 | filecheck %s --check-prefix=COMMA
// RUN: not autoshard-opt --pass-pipeline='cse)' %s 2>&1 | filecheck %s --check-prefix=CLOSE
// RUN: not autoshard-opt --pass-pipeline='canonicalize{max-iterations=3' %s 2>&1 | filecheck %s --check-prefix=BRACE
// RUN: not autoshard-opt --pass-pipeline='builtin.module(canonicaliz)' %s 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not autoshard-opt --pass-pipeline='builtin.module(sdy-populate-op-sharding-rules)' %s 2>&1 | filecheck %s --check-prefix=ANCHOR
// RUN: not autoshard-opt --pass-pipeline='builtin.module(func.func(sdy-propagation-pipeline))' %s 2>&1 | filecheck %s --check-prefix=MODULE
// RUN: not autoshard-opt --pass-pipeline='builtin.module(func.func(autoshard-print-plan))' %s 2>&1 | filecheck %s --check-prefix=OURS
// RUN: not autoshard-opt --pass-pipeline='cse' --canonicalize %s 2>&1 | filecheck %s --check-prefix=BOTH

// A pipeline that cannot be read names the column; one that names a wrong pass, the nearest.
// OPEN:    pipeline:1:19: error: expected "," or ")", found the end in 'builtin.module(cse'. A pipeline reads
// COMMA:   pipeline:1:5: error: expected a pass name, found ","
// CLOSE:   pipeline:1:4: error: expected "," or the end, found ")"
// BRACE:   pipeline:1:30: error: expected "}", found the end
// NAME:    autoshard-opt: error: unknown pass "canonicaliz". Did you mean "canonicalize"?
// ANCHOR:  autoshard-opt: error: sdy-populate-op-sharding-rules: runs on func.func, not on builtin.module. Write func.func(...) around it.
// MODULE:  autoshard-opt: error: sdy-propagation-pipeline: runs on builtin.module, not on func.func. Move it out of func.func(...).
// OURS:    autoshard-opt: error: autoshard-print-plan runs on builtin.module, not on func.func. Move it out of func.func(...).
// BOTH:    autoshard-opt: error: --pass-pipeline and the pass flag --canonicalize exclude each other.
module {}
