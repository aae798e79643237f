// What kernels for CPUs share: bfloat16, vectors, and work spread over XLA's threads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace jaxinfer {

namespace ffi = xla::ffi;
using bf16 = uint16_t;  // the upper half of a float

inline float widen(bf16 value) {
  uint32_t bits = uint32_t(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

// To the nearest, ties to even; a NaN stays one.
inline bf16 narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))

// Vectors of the compiler's, which makes of them what an instruction set has.
template <int LANES>
struct Lanes {
  typedef float Floats __attribute__((vector_size(4 * LANES)));
  typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
  typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
};

template <typename To, typename From>
INLINE To bits_of(const From& from) {
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

// 2 * LANES values of bfloat16 as two vectors of float: those at even places, and those at odd ones. Side by side would
// cost shuffles.
template <int LANES>
struct Pair {
  typename Lanes<LANES>::Floats even, odd;
};

template <int LANES>
INLINE Pair<LANES> widened(const bf16* values) {
  typename Lanes<LANES>::Words words;
  std::memcpy(&words, values, sizeof(words));
  using Floats = typename Lanes<LANES>::Floats;
  return {bits_of<Floats>(words << 16), bits_of<Floats>(words & 0xffff0000u)};
}

// The sum of all lanes, halves by halves.
template <int LANES>
INLINE float total(const typename Lanes<LANES>::Floats& values) {
  if constexpr (LANES == 2) {
    return values[0] + values[1];
  } else {
    typename Lanes<LANES / 2>::Floats halves[2];
    std::memcpy(&halves, &values, sizeof(halves));
    return total<LANES / 2>(halves[0] + halves[1]);
  }
}

inline void put(float* out, float value) { *out = value; }
inline void put(bf16* out, float value) { *out = narrow(value); }

// Calls work(i) for each i below `total`, here and by the other threads of the pool. Who waits has taken no part that
// nobody computes, so that handlers on every thread of the pool cannot wait for each other.
template <typename Work>
void spread(ffi::ThreadPool& pool, int64_t total, const Work& work) {
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
  };
  auto shared = std::make_shared<Shared>();
  auto take = [shared, total, &work] {
    for (int64_t i; (i = shared->next.fetch_add(1)) < total;) {
      work(i);  // it is there: the caller waits for this part
      shared->done.fetch_add(1, std::memory_order_release);
    }
  };
  const int64_t others = std::min<int64_t>(pool.num_threads() - 1, total - 1);
  for (int64_t i = 0; i < others; ++i) pool.Schedule(decltype(take)(take));
  take();
  for (int spins = 0; shared->done.load(std::memory_order_acquire) < total; ++spins)
    if (spins > 1000) std::this_thread::yield();
}

// What a processor can do, the fastest last: nothing special, AVX2, the same with products of bytes (VNNI), AVX-512, the
// same with products of bytes, AMX's tiles. A processor with AVX-512 may lack what stands before it.
enum Isa : int64_t { kPlain, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAmx };

// The fastest up to `most` that this processor has, and may use: Linux must be asked for AMX.
Isa isa_for(int64_t most);

}  // namespace jaxinfer
