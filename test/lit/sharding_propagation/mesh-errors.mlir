// RUN: not autoshard-opt --autoshard-sharding-propagation %s 2>&1 | filecheck %s
// RUN: not autoshard-opt --mesh=dp=2 --autoshard-import-strategies --autoshard-sharding-propagation=trip-count=x %s 2>&1 | filecheck %s --check-prefix=OPTION
// RUN: not autoshard-opt --mesh=dp=2 --autoshard-sharding-propagation=trip-count=-3 %s 2>&1 | filecheck %s --check-prefix=NEGATIVE
// RUN: not autoshard-opt --mesh=a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=2,i=2,j=2,k=2,l=2,m=2,n=2,o=2,p=2,q=2 --autoshard-sharding-propagation %s 2>&1 | filecheck %s --check-prefix=AXES

// A plan is for a mesh, of at most 16 axes; options that mean nothing are refused.
// CHECK: mesh-errors.mlir:
// CHECK-SAME: error: the module has no autoshard.mesh. Run autoshard-import-strategies first, or give --mesh=dp=2,tp=4.
// OPTION: autoshard-opt: error: autoshard-sharding-propagation: option trip-count=x: expected integer. Default: trip-count=100.
// AXES: has 17 axes, 16 are the most. Join some of them.
// NEGATIVE: autoshard-opt: error: autoshard-sharding-propagation: option trip-count=-3 is negative. Give 0 or more.
func.func @main(%x: tensor<8x128xf32> {autoshard.pin = "[{}, {}]"}) -> tensor<8x128xf32> {
  return %x : tensor<8x128xf32>
}
