// The linear layer on CPUs: x [T, K] @ w.T of w [N, K], bfloat16, summed in float32.
//
// Bound by memory up to some eight rows, which one pass over the weights serves. Each sum is taken in one order whatever
// the number of rows, so that a row's bits do not depend on the batch. Where the processor has AMX, its tiles multiply
// any number of rows; elsewhere the compiler's vectors take eight at a time with the weights in the cache.

#include <algorithm>
#include <vector>

#include "cpu_tiles.h"

namespace jaxinfer {
namespace {

constexpr int kMost = 8;   // rows of one pass
constexpr int kRows = 64;  // rows of weights that a thread takes at once

struct Product : Shape {
  const bf16 *x, *w;
};

// ---- the compiler's vectors ----
// Weights are widened to float32 as they come. x is wide already, since its rows would be widened for each row of weights
// else, and has the order in which weights come.

template <int LANES>
INLINE int64_t whole_of(const Product& p) {
  return p.k / (2 * LANES) * (2 * LANES);
}

template <int LANES>
void widen_rows(const Product& p, float* wide) {
  const int64_t whole = whole_of<LANES>(p);
  for (int64_t t = 0; t < p.t; ++t, wide += p.k) {
    const bf16* x = p.x + t * p.k;
    for (int64_t k = 0; k < p.k; ++k) {
      const int64_t at = k % (2 * LANES);
      wide[k < whole ? k - at + at % 2 * LANES + at / 2 : k] = widen(x[k]);
    }
  }
}

template <int LANES, int M, int R, typename Out>
INLINE void dots(const Product& p, const float* x, int64_t first, int64_t row, Out* out) {
  const bf16* w = p.w + row * p.k;
  const int64_t whole = whole_of<LANES>(p);
  typename Lanes<LANES>::Floats sums[R][M] = {};
  for (int64_t k = 0; k < whole; k += 2 * LANES) {
    Pair<LANES> right[R];
    UNROLL for (int r = 0; r < R; ++r) right[r] = widened<LANES>(w + r * p.k + k);
    UNROLL for (int m = 0; m < M; ++m) {
      Pair<LANES> left;
      std::memcpy(&left, x + m * p.k + k, sizeof(left));
      UNROLL for (int r = 0; r < R; ++r) sums[r][m] += left.even * right[r].even;
      UNROLL for (int r = 0; r < R; ++r) sums[r][m] += left.odd * right[r].odd;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) {
      float sum = total<LANES>(sums[r][m]);
      for (int64_t k = whole; k < p.k; ++k) sum += x[m * p.k + k] * widen(w[r * p.k + k]);
      put(out + (first + m) * p.n + row + r, sum);
    }
}

// AT_ONCE: rows whose sums fit into registers beside each other.
template <int LANES, int AT_ONCE, int M, int R, typename Out>
INLINE void dots_by(const Product& p, const float* x, int64_t first, int64_t row, Out* out) {
  constexpr int kNow = std::min(M, AT_ONCE);
  dots<LANES, kNow, R>(p, x, first, row, out);
  if constexpr (M > kNow) dots_by<LANES, AT_ONCE, M - kNow, R>(p, x + kNow * p.k, first + kNow, row, out);
}

template <int LANES, int AT_ONCE, int M, typename Out>
INLINE void few(const Product& p, const float* x, int64_t first, int64_t row, int64_t end, Out* out) {
  constexpr int kRowsAtOnce = M == 1 ? 4 : 2;  // a sum does not wait for the one before it
  for (; row + kRowsAtOnce <= end; row += kRowsAtOnce) dots_by<LANES, AT_ONCE, M, kRowsAtOnce>(p, x, first, row, out);
  for (; row < end; ++row) dots_by<LANES, AT_ONCE, M, 1>(p, x, first, row, out);
}

template <int M, typename Out>
__attribute__((target("avx512f,avx512bw,avx512vl,prefer-vector-width=512"))) void few_avx512(
    const Product& p, const float* x, int64_t first, int64_t row, int64_t end, Out* out) {
  few<16, 8, M>(p, x, first, row, end, out);
}

template <int M, typename Out>
__attribute__((target("avx2,fma"))) void few_avx2(
    const Product& p, const float* x, int64_t first, int64_t row, int64_t end, Out* out) {
  few<8, 3, M>(p, x, first, row, end, out);
}

template <int M, typename Out>
void few_plain(const Product& p, const float* x, int64_t first, int64_t row, int64_t end, Out* out) {
  few<8, 3, M>(p, x, first, row, end, out);
}

template <int M, typename Out>
void few_by(Isa isa, const Product& p, const float* wide, int64_t first, int64_t row, int64_t end, Out* out) {
  const float* x = wide + first * p.k;
  switch (isa) {
    case kPlain: return few_plain<M>(p, x, first, row, end, out);
    case kAvx2:
    case kAvxVnni: return few_avx2<M>(p, x, first, row, end, out);
    default: return few_avx512<M>(p, x, first, row, end, out);
  }
}

template <typename Out>
void rows(Isa isa, const Product& p, const float* wide, int64_t first, int64_t row, int64_t end, Out* out) {
  switch (std::min<int64_t>(p.t - first, kMost)) {
    case 1: return few_by<1>(isa, p, wide, first, row, end, out);
    case 2: return few_by<2>(isa, p, wide, first, row, end, out);
    case 3: return few_by<3>(isa, p, wide, first, row, end, out);
    case 4: return few_by<4>(isa, p, wide, first, row, end, out);
    case 5: return few_by<5>(isa, p, wide, first, row, end, out);
    case 6: return few_by<6>(isa, p, wide, first, row, end, out);
    case 7: return few_by<7>(isa, p, wide, first, row, end, out);
    default: return few_by<8>(isa, p, wide, first, row, end, out);
  }
}

template <typename Out>
void multiply(ffi::ThreadPool& pool, Isa isa, const Product& p, Out* out) {
  if (isa == kAmx && p.has_tiles())
    return many_by_tiles(pool, p, p.x, [&](int64_t row, int64_t) { return p.w + row * p.k; }, out);
  std::vector<float> wide(p.t * p.k);
  isa < kAvx512 ? widen_rows<8>(p, wide.data()) : widen_rows<16>(p, wide.data());
  spread(pool, (p.n + kRows - 1) / kRows, [&](int64_t i) {
    for (int64_t first = 0; first < p.t; first += kMost)
      rows(isa, p, wide.data(), first, i * kRows, std::min(p.n, (i + 1) * kRows), out);
  });
}

ffi::Error linear(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::BF16> w,
                  ffi::Result<ffi::AnyBuffer> out, int64_t isa) {
  const auto left = x.dimensions(), right = w.dimensions();
  if (left.size() != 2 || right.size() != 2 || left[1] != right[1])
    return ffi::Error::InvalidArgument("linear takes x [T, K] and w [N, K]");
  const Product p{{left[0], right[0], left[1]}, (const bf16*)x.untyped_data(), (const bf16*)w.untyped_data()};
  try {
    const Isa chosen = isa_for(isa);
    if (out->element_type() == ffi::F32) multiply(pool, chosen, p, (float*)out->untyped_data());
    else multiply(pool, chosen, p, (bf16*)out->untyped_data());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "RESOURCE_EXHAUSTED: no memory for a product's operand");
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Linear, linear,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("isa"));

}  // namespace jaxinfer
