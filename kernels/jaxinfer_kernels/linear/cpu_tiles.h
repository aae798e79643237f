// Linear layers by AMX's tiles, x [T, K] @ w.T of w [N, K], bfloat16, summed in float32, for any number of rows.
#pragma once

#include <immintrin.h>

#include <new>

#include "../cpu.h"

namespace jaxinfer {

constexpr int kTile = 16, kDepth = 32;  // rows of a tile, and values of bfloat16 in a row
constexpr int64_t kBlock = 128;         // rows of weights that stay in a core's cache

struct Shape {
  int64_t t, n, k;
  bool has_tiles() const { return k % kDepth == 0 && n % (4 * kTile) == 0; }
};

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
AMX inline void pack(const Shape& p, const bf16* x, int64_t first, bf16* packed) {
  const int64_t rows = std::min<int64_t>(kTile, p.t - first);
  for (int64_t k = 0; k < p.k; k += kDepth) {
    __m512i r[16];
    for (int i = 0; i < kTile; ++i)
      r[i] = i < rows ? _mm512_loadu_si512(x + (first + i) * p.k + k) : _mm512_setzero_si512();
    transpose(r);
    for (int i = 0; i < kTile; ++i) _mm512_store_si512(packed + k * kTile + i * kDepth, r[i]);
  }
}

AMX inline void unload(const float* tile, const Shape& p, int64_t first, int64_t row, float* out) {
  __m512i r[16];
  for (int i = 0; i < kTile; ++i) r[i] = _mm512_load_si512(tile + i * kTile);
  transpose(r);
  const int64_t rows = std::min<int64_t>(kTile, p.t - first);
  for (int i = 0; i < rows; ++i) _mm512_storeu_si512(out + (first + i) * p.n + row, r[i]);
}

AMX inline void unload(const float* tile, const Shape& p, int64_t first, int64_t row, bf16* out) {
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

// 64 rows of weights, of which w is the first, by up to 16 rows of x: each weight is read once, and used once.
template <typename Out>
AMX inline void narrow_tiles(const Shape& p, const bf16* w, const bf16* x, int64_t row, Out* out) {
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
AMX inline void tiles(const Shape& p, const bf16* w, const bf16* packed, int64_t first, int64_t row, Out* out) {
  const bf16* x = packed + first * p.k;
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

// weights(row, end): those rows, as they lie or made for this call, until the thread's next one. None: no memory.
template <typename Weights, typename Out>
AMX void many_by_tiles(ffi::ThreadPool& pool, const Shape& p, const bf16* x, const Weights& weights, Out* out) {
  const int64_t groups = p.t <= kTile ? 1 : (p.t + 31) / 32 * 2;
  std::unique_ptr<bf16, decltype(&std::free)> packed(
      (bf16*)std::aligned_alloc(64, groups * kTile * p.k * sizeof(bf16)), &std::free);
  bf16* at = packed.get();
  if (at == nullptr) throw std::bad_alloc();
  spread(pool, groups, [&](int64_t i) {
    if (i * kTile < p.t) pack(p, x, i * kTile, at + i * kTile * p.k);
    else std::memset(at + i * kTile * p.k, 0, kTile * p.k * sizeof(bf16));
  });
  std::atomic<bool> no_memory{false};
  spread(pool, (p.n + kBlock - 1) / kBlock, [&](int64_t i) AMX {
    const int64_t begin = i * kBlock, end = std::min(p.n, begin + kBlock);
    const bf16* w = weights(begin, end);
    if (w == nullptr) return no_memory.store(true);
    static const TileConfig config;
    _tile_loadconfig(&config);
    if (p.t <= kTile)
      for (int64_t row = begin; row < end; row += 4 * kTile) narrow_tiles(p, w + (row - begin) * p.k, at, row, out);
    else for (int64_t first = 0; first < p.t; first += 2 * kTile)
      for (int64_t row = begin; row < end; row += 2 * kTile) tiles(p, w + (row - begin) * p.k, at, first, row, out);
    _tile_release();
  });
  if (no_memory) throw std::bad_alloc();
}

}  // namespace jaxinfer
