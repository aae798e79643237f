// What this processor can do.
#include "cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace jaxinfer {

Isa best_isa() {
  static const Isa found = [] {
    constexpr int kRequest = 0x1023, kTileData = 18;  // arch_prctl's ARCH_REQ_XCOMP_PERM
    __builtin_cpu_init();
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    const bool has_amx = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("amx-bf16");
    if (has_avx512) return has_amx && !syscall(SYS_arch_prctl, kRequest, kTileData) ? kAmx : kAvx512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kAvx2 : kPlain;
  }();
  return found;
}

}  // namespace jaxinfer

extern "C" int64_t jaxinfer_best_isa() { return jaxinfer::best_isa(); }
