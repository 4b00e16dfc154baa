// RUN: not autoshard-opt --autoshard-lockstep='stages=3 micro-batches=4 batch=x' %s 2>&1 | filecheck --check-prefix=SHARE %s
// RUN: not autoshard-opt --autoshard-lockstep='stages=8 micro-batches=8 batch=x' %s 2>&1 | filecheck --check-prefix=EQUAL %s
// RUN: not autoshard-opt --autoshard-lockstep='stages=4 micro-batches=2 batch=x' %s 2>&1 | filecheck --check-prefix=FEW %s
// RUN: not autoshard-opt --autoshard-lockstep='stages=2 micro-batches=4 batch=x delay=3' %s 2>&1 | filecheck --check-prefix=DELAY %s
// RUN: not autoshard-opt --autoshard-lockstep='stages=2 micro-batches=4 batch=x' %s 2>&1 | filecheck --check-prefix=ROWS %s
// RUN: not autoshard-opt --autoshard-export-lockstep %s 2>&1 | filecheck --check-prefix=EXPORT %s

// Stages share the micro-batches of what is no layer, and each has equally many layers.
// SHARE:  execution='lockstep' with stages=3, micro_batches=4: stages share the micro-batches of what is no layer, as of the loss. Give a multiple of the stages: 3 or 6.
// EQUAL:  net.py:7:1
// EQUAL-SAME: a loop over 4 layers does not fall into 8 equal parts. Give stages=2 or 4, or another number of layers.
// FEW:    micro_batches=2 is smaller than stages=4
// DELAY:  delay=3: expected 1 or more, and a delay of 1 or 2.
// EXPORT: autoshard-export-lockstep: the program is not in lockstep. Run autoshard-lockstep, with stages=2 or more, before it is planned, or take autoshard-export-shardy.

// An op that needs the layers of all stages at once.
// ROWS:      net.py:9:1
// ROWS-SAME: stablehlo.reverse reads all rows of an array of shape (4, 4, 4), of which each stage has those of its own layers.
func.func public @main(%x: tensor<8x4xf32> loc("x"), %a: tensor<4x4xf32> loc("a"), %w: tensor<4x4x4xf32> loc("w"))
    -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %start = stablehlo.constant dense<0> : tensor<i32>
  %f:3 = stablehlo.while(%n = %start, %h = %first, %v = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  cond {
    %trips = stablehlo.constant dense<4> : tensor<i32>
    %more = stablehlo.compare LT, %n, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %row = stablehlo.dynamic_slice %v, %n, %z, %z, sizes = [1, 4, 4]
        : (tensor<4x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %own = stablehlo.reshape %row : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %y = stablehlo.dot_general %h, %own, contracting_dims = [1] x [0]
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %next = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %next, %y, %v : tensor<i32>, tensor<8x4xf32>, tensor<4x4x4xf32>
  } loc("net.py":7:1)
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %l = stablehlo.reduce(%f#1 init: %zero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %r = stablehlo.reverse %w, dims = [0] : tensor<4x4x4xf32> loc("net.py":9:1)
  %s = stablehlo.reduce(%r init: %zero) applies stablehlo.add across dimensions = [0, 1, 2]
      : (tensor<4x4x4xf32>, tensor<f32>) -> tensor<f32>
  return %l, %s : tensor<f32>, tensor<f32>
}
