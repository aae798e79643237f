// The linear layer on CPUs: x [T, K] @ w.T of w [N, K], bfloat16, summed in float32.
//
// Bound by memory up to some eight rows, which one pass over the weights serves: each sum is taken in one order whatever
// the number of rows, so that a row's bits do not depend on the batch. More rows are multiplied by AMX's tiles where the
// processor has them, otherwise eight at a time with the weights in its cache.

#include <immintrin.h>
#include <algorithm>
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

// ---- few rows: AVX-512 with products of bfloat16 ----

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

template <int M, int R, typename Out>
AVX512 inline void dots(const Product& p, int64_t first, int64_t row, Out* out) {
  __m512 sums[R][M];
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) sums[r][m] = _mm512_setzero_ps();
  const bf16 *x = p.x + first * p.k, *w = p.w + row * p.k;
  const int64_t whole = p.k / 32 * 32;
  auto step = [&](int64_t k, __mmask32 mask) AVX512 __attribute__((always_inline)) {
    __m512bh left[M];
    for (int m = 0; m < M; ++m) left[m] = (__m512bh)_mm512_maskz_loadu_epi16(mask, x + m * p.k + k);
    for (int r = 0; r < R; ++r) {
      const __m512bh right = (__m512bh)_mm512_maskz_loadu_epi16(mask, w + r * p.k + k);
      for (int m = 0; m < M; ++m) sums[r][m] = _mm512_dpbf16_ps(sums[r][m], left[m], right);
    }
  };
  for (int64_t k = 0; k < whole; k += 32) step(k, ~0u);
  if (whole < p.k) step(whole, (1u << (p.k - whole)) - 1);
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) put(out + (first + m) * p.n + row + r, _mm512_reduce_add_ps(sums[r][m]));
}

template <int M, typename Out>
AVX512 void few_avx512(const Product& p, int64_t first, int64_t row, int64_t end, Out* out) {
  constexpr int R = M <= 4 ? 4 : 2;
  for (; row + R <= end; row += R) dots<M, R>(p, first, row, out);
  for (; row < end; ++row) dots<M, 1>(p, first, row, out);
}

// ---- few rows: whatever vectors the compiler has ----

typedef float f32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

inline __attribute__((always_inline)) f32x8 widened(const bf16* values) {
  u16x8 narrow8;
  std::memcpy(&narrow8, values, 16);
  const u32x8 bits = __builtin_convertvector(narrow8, u32x8) << 16;
  f32x8 wide;
  std::memcpy(&wide, &bits, 32);
  return wide;
}

template <int M, typename Out>
inline __attribute__((always_inline)) void few_of(const Product& p, int64_t first, int64_t row, int64_t end, Out* out) {
  const bf16* x = p.x + first * p.k;
  const int64_t whole = p.k / 8 * 8;
  for (; row < end; ++row) {
    const bf16* w = p.w + row * p.k;
    f32x8 sums[M] = {};
    for (int64_t k = 0; k < whole; k += 8) {
      const f32x8 right = widened(w + k);
      for (int m = 0; m < M; ++m) sums[m] += widened(x + m * p.k + k) * right;
    }
    for (int m = 0; m < M; ++m) {
      float sum = 0;
      for (int i = 0; i < 8; ++i) sum += sums[m][i];
      for (int64_t k = whole; k < p.k; ++k) sum += widen(x[m * p.k + k]) * widen(w[k]);
      put(out + (first + m) * p.n + row, sum);
    }
  }
}

template <int M, typename Out>
__attribute__((target("avx2,fma"))) void few_avx2(
    const Product& p, int64_t first, int64_t row, int64_t end, Out* out) {
  few_of<M>(p, first, row, end, out);
}

template <int M, typename Out>
void few_plain(const Product& p, int64_t first, int64_t row, int64_t end, Out* out) {
  few_of<M>(p, first, row, end, out);
}

// ---- many rows: AMX ----

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

// 64 rows of weights by up to 16 rows of x: each weight is read once, and used once.
template <typename Out>
AMX inline void narrow_tiles(const Product& p, const bf16* x, int64_t row, Out* out) {
  const bf16* w = p.w + row * p.k;
  const int64_t stride = p.k * 2, next = p.k * kTile;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
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
  alignas(64) float sums[4][kTile * kTile];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  for (int i = 0; i < 4; ++i) unload(sums[i], p, 0, row + i * kTile, out);
}

// 32 rows of weights by 32 rows of x.
template <typename Out>
AMX inline void tiles(const Product& p, const bf16* packed, int64_t first, int64_t row, Out* out) {
  const bf16 *w = p.w + row * p.k, *x = packed + first * p.k;
  const int64_t stride = p.k * 2, next = p.k * kTile;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
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
  alignas(64) float sums[4][kTile * kTile];
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  _tile_stored(2, sums[2], 64);
  _tile_stored(3, sums[3], 64);
  for (int i = 0; i < 4; ++i)
    if (first + i % 2 * kTile < p.t) unload(sums[i], p, first + i % 2 * kTile, row + i / 2 * kTile, out);
}

template <typename Out>
AMX void many_amx(ffi::ThreadPool& pool, const Product& p, Out* out) {
  const int64_t groups = p.t <= kTile ? 1 : (p.t + 31) / 32 * 2;
  std::unique_ptr<bf16, decltype(&std::free)> packed(
      (bf16*)std::aligned_alloc(64, groups * kTile * p.k * sizeof(bf16)), &std::free);
  bf16* at = packed.get();
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

template <int M, typename Out>
void few(Isa isa, const Product& p, int64_t first, int64_t row, int64_t end, Out* out) {
  switch (isa) {
    case kPlain: return few_plain<M>(p, first, row, end, out);
    case kAvx2: return few_avx2<M>(p, first, row, end, out);
    default: return few_avx512<M>(p, first, row, end, out);
  }
}

template <typename Out>
void rows(Isa isa, const Product& p, int64_t first, int64_t row, int64_t end, Out* out) {
  switch (std::min<int64_t>(p.t - first, kMost)) {
    case 1: return few<1>(isa, p, first, row, end, out);
    case 2: return few<2>(isa, p, first, row, end, out);
    case 3: return few<3>(isa, p, first, row, end, out);
    case 4: return few<4>(isa, p, first, row, end, out);
    case 5: return few<5>(isa, p, first, row, end, out);
    case 6: return few<6>(isa, p, first, row, end, out);
    case 7: return few<7>(isa, p, first, row, end, out);
    default: return few<8>(isa, p, first, row, end, out);
  }
}

template <typename Out>
void multiply(ffi::ThreadPool& pool, Isa isa, const Product& p, Out* out) {
  if (isa == kAmx && p.k % kDepth == 0 && p.n % (4 * kTile) == 0) return many_amx(pool, p, out);
  spread(pool, (p.n + kRows - 1) / kRows, [&](int64_t i) {
    for (int64_t first = 0; first < p.t; first += kMost)
      rows(isa, p, first, i * kRows, std::min(p.n, (i + 1) * kRows), out);
  });
}

ffi::Error linear(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::Buffer<ffi::BF16> w,
                  ffi::Result<ffi::AnyBuffer> out, int64_t isa) {
  const auto left = x.dimensions(), right = w.dimensions();
  if (left.size() != 2 || right.size() != 2 || left[1] != right[1])
    return ffi::Error::InvalidArgument("linear takes x [T, K] and w [N, K]");
  const Product p{(const bf16*)x.untyped_data(), (const bf16*)w.untyped_data(), left[0], right[0], left[1]};
  const Isa chosen = isa_for(isa);
  if (out->element_type() == ffi::F32) multiply(pool, chosen, p, (float*)out->untyped_data());
  else multiply(pool, chosen, p, (bf16*)out->untyped_data());
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
