// An op that takes time and no processor: what a stage of a pipeline is to the host.
#include <unistd.h>

#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

static ffi::Error nap(std::int64_t microseconds, ffi::AnyBuffer x,
                      ffi::Result<ffi::AnyBuffer> y) {
  std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
  usleep(static_cast<useconds_t>(microseconds));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(Nap, nap,
                              ffi::Ffi::Bind()
                                  .Attr<std::int64_t>("microseconds")
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
