// The linear layer on CPUs: x [T, K] @ w.T of w [N, K], bfloat16, summed in float32.
//
// Bound by memory up to some eight rows, which one pass over the weights serves. Each sum is taken in one order whatever
// the number of rows, so that a row's bits do not depend on the batch. Where the processor has AMX, its tiles multiply
// any number of rows; elsewhere the compiler's vectors take eight at a time with the weights in the cache.

#include <immintrin.h>

#include <algorithm>
#include <new>
#include <vector>

#include "../cpu.h"

namespace jaxinfer {
namespace {

constexpr int kMost = 8;        // rows of one pass
constexpr int kRows = 64;       // rows of weights that a thread takes at once
constexpr int kTile = 16, kDepth = 32;  // of AMX: rows, and values of bfloat16 in a row

struct Product {
  const bf16 *x, *w;
  int64_t t, n, k;
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
    case kAvx2: return few_avx2<M>(p, x, first, row, end, out);
    default: return few_avx512<M>(p, x, first, row, end, out);
  }
}

// ---- AMX ----

#define AMX __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,amx-tile,amx-bf16")))

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
  TileConfig() {
    for (int i = 0; i < 8; ++i) bytes[i] = 64, rows[i] = kTile;
  }
};

// 16 rows of 16 words to 16 columns.
AMX inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// 16 rows of x as AMX multiplies them: tile after tile of K, in each pairs of values by rows, and x's rows as columns.
AMX void pack(const Product& p, int64_t first, bf16* packed) {
  const int64_t rows = std::min<int64_t>(kTile, p.t - first);
  for (int64_t k = 0; k < p.k; k += kDepth) {
    __m512i r[16];
    for (int i = 0; i < kTile; ++i)
      r[i] = i < rows ? _mm512_loadu_si512(p.x + (first + i) * p.k + k) : _mm512_setzero_si512();
    transpose(r);
    for (int i = 0; i < kTile; ++i) _mm512_store_si512(packed + k * kTile + i * kDepth, r[i]);
  }
}

AMX inline void unload(const float* tile, const Product& p, int64_t first, int64_t row, float* out) {
  __m512i r[16];
  for (int i = 0; i < kTile; ++i) r[i] = _mm512_load_si512(tile + i * kTile);
  transpose(r);
  const int64_t rows = std::min<int64_t>(kTile, p.t - first);
  for (int i = 0; i < rows; ++i) _mm512_storeu_si512(out + (first + i) * p.n + row, r[i]);
}

AMX inline void unload(const float* tile, const Product& p, int64_t first, int64_t row, bf16* out) {
  __m512i r[16];
  for (int i = 0; i < kTile; ++i) r[i] = _mm512_load_si512(tile + i * kTile);
  transpose(r);
  const int64_t rows = std::min<int64_t>(kTile, p.t - first);
  for (int i = 0; i < rows; ++i)
    _mm256_storeu_si256((__m256i*)(out + (first + i) * p.n + row), (__m256i)_mm512_cvtneps_pbh((__m512)r[i]));
}

// Tiles 0 to 3 hold sums; the others what is multiplied.
AMX inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

struct Sums {
  alignas(64) float tiles[4][kTile * kTile];
  AMX Sums() {
    _tile_stored(0, tiles[0], 64);
    _tile_stored(1, tiles[1], 64);
    _tile_stored(2, tiles[2], 64);
    _tile_stored(3, tiles[3], 64);
  }
};

// 64 rows of weights by up to 16 rows of x: each weight is read once, and used once.
template <typename Out>
AMX inline void narrow_tiles(const Product& p, const bf16* x, int64_t row, Out* out) {
  const bf16* w = p.w + row * p.k;
  const int64_t stride = p.k * 2, next = p.k * kTile;
  clear_sums();
  for (int64_t k = 0; k < p.k; k += kDepth) {
    _tile_loadd(7, x + k * kTile, 64);
    _tile_loadd(4, w + k, stride);
    _tile_dpbf16ps(0, 4, 7);
    _tile_loadd(5, w + next + k, stride);
    _tile_dpbf16ps(1, 5, 7);
    _tile_loadd(6, w + 2 * next + k, stride);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(4, w + 3 * next + k, stride);
    _tile_dpbf16ps(3, 4, 7);
  }
  const Sums sums;
  for (int i = 0; i < 4; ++i) unload(sums.tiles[i], p, 0, row + i * kTile, out);
}

// 32 rows of weights by 32 rows of x.
template <typename Out>
AMX inline void tiles(const Product& p, const bf16* packed, int64_t first, int64_t row, Out* out) {
  const bf16 *w = p.w + row * p.k, *x = packed + first * p.k;
  const int64_t stride = p.k * 2, next = p.k * kTile;
  clear_sums();
  for (int64_t k = 0; k < p.k; k += kDepth) {
    _tile_loadd(4, w + k, stride);
    _tile_loadd(5, w + next + k, stride);
    _tile_loadd(6, x + k * kTile, 64);
    _tile_loadd(7, x + next + k * kTile, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  const Sums sums;
  for (int i = 0; i < 4; ++i)
    if (first + i % 2 * kTile < p.t) unload(sums.tiles[i], p, first + i % 2 * kTile, row + i / 2 * kTile, out);
}

template <typename Out>
AMX void many_amx(ffi::ThreadPool& pool, const Product& p, Out* out) {
  const int64_t groups = p.t <= kTile ? 1 : (p.t + 31) / 32 * 2;
  std::unique_ptr<bf16, decltype(&std::free)> packed(
      (bf16*)std::aligned_alloc(64, groups * kTile * p.k * sizeof(bf16)), &std::free);
  bf16* at = packed.get();
  if (at == nullptr) throw std::bad_alloc();
  spread(pool, groups, [&](int64_t i) {
    if (i * kTile < p.t) pack(p, i * kTile, at + i * kTile * p.k);
    else std::memset(at + i * kTile * p.k, 0, kTile * p.k * sizeof(bf16));
  });
  constexpr int64_t kBlock = 128;  // rows of weights that stay in a core's cache
  spread(pool, (p.n + kBlock - 1) / kBlock, [&](int64_t i) AMX {
    static const TileConfig config;
    _tile_loadconfig(&config);
    const int64_t begin = i * kBlock, end = std::min(p.n, begin + kBlock);
    if (p.t <= kTile)
      for (int64_t row = begin; row + 4 * kTile <= end; row += 4 * kTile) narrow_tiles(p, at, row, out);
    else for (int64_t first = 0; first < p.t; first += 2 * kTile)
      for (int64_t row = begin; row + 2 * kTile <= end; row += 2 * kTile) tiles(p, at, first, row, out);
    _tile_release();
  });
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
  if (isa == kAmx && p.k % kDepth == 0 && p.n % (4 * kTile) == 0) return many_amx(pool, p, out);
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
  const Product p{(const bf16*)x.untyped_data(), (const bf16*)w.untyped_data(), left[0], right[0], left[1]};
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
