// What this processor can do.
#include "cpu.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace jaxinfer {
namespace {

bool has(Isa isa) {
  constexpr int kRequest = 0x1023, kTileData = 18;  // arch_prctl's ARCH_REQ_XCOMP_PERM
  switch (isa) {
    case kPlain: return true;
    case kAvx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case kAvxVnni: return has(kAvx2) && __builtin_cpu_supports("avxvnni");
    case kAvx512:
      return has(kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    case kAvx512Vnni: return has(kAvx512) && __builtin_cpu_supports("avx512vnni");
    case kAmx:
      return has(kAvx512Vnni) && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("amx-bf16") &&
             !syscall(SYS_arch_prctl, kRequest, kTileData);
  }
  return false;
}

}  // namespace

Isa isa_for(int64_t most) {
  static const auto found = [] {
    __builtin_cpu_init();
    std::array<Isa, kAmx + 1> best{};
    for (int64_t isa = kAvx2; isa <= kAmx; ++isa) best[isa] = has(Isa(isa)) ? Isa(isa) : best[isa - 1];
    return best;
  }();
  return found[std::clamp<int64_t>(most, kPlain, kAmx)];
}

}  // namespace jaxinfer

extern "C" int64_t jaxinfer_isa_for(int64_t most) { return jaxinfer::isa_for(most); }
