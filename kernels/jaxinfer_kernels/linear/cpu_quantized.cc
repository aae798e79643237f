// Linear layers on CPUs whose weights are held in 8 or 4 bits: x [T, K] @ w.T of w [N, K], x in bfloat16.
//
// A few rows are multiplied as integers: each row of x is rounded to 8 bits, with a scale per group of 32 columns, and
// a group's products are summed exactly. What follows is float32, in one order whatever the number of rows, so that a
// row's bits do not depend on the batch. With AMX, more rows take weights that are widened to bfloat16 by blocks, and x
// as it is.
// linear/quantized.py says how weights lie; linear/reference.py is this arithmetic.

#include "cpu_tiles.h"

namespace jaxinfer {
namespace {

constexpr int kMost = 8;         // rows of one pass
constexpr int kRows = 64;        // rows of weights that a thread takes at once
constexpr int kColumns = 128;    // of a block: four groups
constexpr int kGroup = 32;       // columns that share a scale of x, and of weights in 4 bits
constexpr int kRun = 16;         // columns of half a group, which lie side by side
constexpr int kAll = 16;         // lanes of a block: the products of 8 columns each
constexpr float kLeast = 1e-30;  // a group whose values are all smaller counts as zeros

// kZero: what is added to a weight so that no byte is negative.
struct Int8 {
  static constexpr int kBits = 8, kZero = 128;
};
struct Int4 {
  static constexpr int kBits = 4, kZero = 8;
};

// scales: of Int8 float [N], of Int4 bfloat16 [N, K / 32].
struct Product : Shape {
  const bf16* x;
  const uint8_t* values;
  const void* scales;
};

struct Result {
  void* at;
  bool is_wide;
  void put(int64_t i, float value) const {
    if (is_wide) jaxinfer::put((float*)at + i, value);
    else jaxinfer::put((bf16*)at + i, value);
  }
};

// ---- x in 8 bits ----

// 128 columns of a row. Group g has 16 bytes of `low`, from 16 g on, and those of `high` beside them. `start` takes
// away what kZero adds to each lane's products.
struct alignas(64) Block {
  int8_t low[kColumns / 2], high[kColumns / 2];
  int32_t start[kAll];
  float scales[kAll];
};

using Floats = Lanes<kRun>::Floats;
using Ints = Lanes<kRun>::Ints;
using Words = Lanes<kRun>::Words;

INLINE Floats widened_run(const bf16* x, int64_t count) {
  typedef uint16_t Halves __attribute__((vector_size(2 * kRun)));
  Halves run = {};
  if (count >= kRun) std::memcpy(&run, x, sizeof(run));
  else if (count > 0) std::memcpy(&run, x, count * sizeof(bf16));
  return bits_of<Floats>(__builtin_convertvector(run, Words) << 16);
}

// Half of x times `inverse`, to the nearest, halves away from zero.
INLINE void round_run(Floats x, float inverse, int8_t* out) {
  typedef int8_t Bytes __attribute__((vector_size(kRun)));
  const Ints twice = __builtin_convertvector(x * inverse, Ints);
  const Ints away = twice + ((twice >> 31) | 1);
  const Bytes rounded = __builtin_convertvector((away - (away >> 31)) >> 1, Bytes);
  std::memcpy(out, &rounded, sizeof(rounded));
}

INLINE float largest(Floats a, Floats b) {
  const Ints bits = bits_of<Ints>(a) & 0x7fffffff, other = bits_of<Ints>(b) & 0x7fffffff;
  const Ints larger = bits > other ? bits : other;
  int32_t most = 0;
  for (int i = 0; i < kRun; ++i) most = std::max(most, larger[i]);
  float value;
  std::memcpy(&value, &most, 4);
  return value;
}

template <typename Format>
INLINE void round_block(const bf16* x, int64_t count, Block* out) {
  constexpr int kNext = Format::kBits == 8 ? kColumns / 2 : kRun;  // from a run to the group's other one
  constexpr int kStep = Format::kBits == 8 ? kRun : kGroup;        // from a group's first run to the next one's
  for (int g = 0; g < kColumns / kGroup; ++g) {
    Floats low = widened_run(x + g * kStep, count - g * kStep);
    Floats high = widened_run(x + g * kStep + kNext, count - g * kStep - kNext);
    const float most = largest(low, high);
    const bool is_finite = most <= 3.4e38f;
    if (!is_finite) low = high = Floats{};
    const float inverse = is_finite && most >= kLeast ? 254.0f / most : 0.0f;
    round_run(low, inverse, out->low + g * kRun);
    round_run(high, inverse, out->high + g * kRun);
    for (int i = 0; i < 4; ++i) out->scales[g * 4 + i] = is_finite ? most / 127.0f : most - most;  // then NaN
  }
  for (int i = 0; i < kAll; ++i) {
    int32_t sum = 0;
    for (int j = 0; j < 4; ++j) sum += out->low[i * 4 + j] + out->high[i * 4 + j];
    out->start[i] = -Format::kZero * sum;
  }
}

template <typename Format>
INLINE void round_row(const Product& p, int64_t row, Block* out) {
  for (int64_t k = 0; k < p.k; k += kColumns) round_block<Format>(p.x + row * p.k + k, p.k - k, out + k / kColumns);
}

// ---- what instruction sets differ in ----
// dot: sums of four products each of bytes, those of w without a sign. Instructions stand as assembly: their intrinsics
// may be used only in functions that are compiled for them, and these are part of functions for several sets.

struct Plain {
  static constexpr int kLanes = 8;
  using Ints = Lanes<8>::Ints;
  using Words = Lanes<8>::Words;
  static INLINE Ints dot(Ints sum, Words w, Words x) {
    UNROLL for (int i = 0; i < 4; ++i)
      sum += bits_of<Ints>((w >> (8 * i)) & 0xff) * (bits_of<Ints>(x << (24 - 8 * i)) >> 24);
    return sum;
  }
};

struct Avx2 : Plain {
  static INLINE Ints dot(Ints sum, Words w, Words x) {
    typedef int16_t Shorts __attribute__((vector_size(32)));
    const Words even = w & 0x00ff00ffu, odd = (w >> 8) & 0x00ff00ffu;
    const Shorts high = bits_of<Shorts>(x) >> 8, low = (bits_of<Shorts>(x) << 8) >> 8;
    Ints first, second;
    asm("vpmaddwd %2, %1, %0" : "=x"(first) : "x"(even), "x"(low));
    asm("vpmaddwd %2, %1, %0" : "=x"(second) : "x"(odd), "x"(high));
    return sum + first + second;
  }
};

struct AvxVnni : Plain {
  static INLINE Ints dot(Ints sum, Words w, Words x) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "xm"(x));
    return sum;
  }
};

struct Avx512Vnni {
  static constexpr int kLanes = 16;
  using Ints = Lanes<16>::Ints;
  using Words = Lanes<16>::Words;
  static INLINE Ints dot(Ints sum, Words w, Words x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "vm"(x));
    return sum;
  }
};

// ---- up to eight rows ----

template <typename To>
INLINE To loaded(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}

// The scales of weights in 4 bits, each in its group's four lanes.
template <int LANES>
INLINE typename Lanes<LANES>::Floats spread_scales(const bf16* scales) {
  using Eight = Lanes<8>::Words;
  const Eight first = Eight{} + loaded<uint32_t>(scales);  // two of them
  if constexpr (LANES == 8) {
    return bits_of<Lanes<8>::Floats>(first << Eight{16, 16, 16, 16, 0, 0, 0, 0} & 0xffff0000u);
  } else {
    const Eight second = Eight{} + loaded<uint32_t>(scales + 2);
    const auto all = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const Lanes<16>::Words by = {16, 16, 16, 16, 0, 0, 0, 0, 16, 16, 16, 16, 0, 0, 0, 0};
    return bits_of<Lanes<16>::Floats>(all << by & 0xffff0000u);
  }
}

template <typename Isa, typename Format, int M, int R>
INLINE void add_block(const uint8_t* const* w, const bf16* const* scales, const Block* const* x,
                      typename Lanes<Isa::kLanes>::Floats (&sums)[R][M]) {
  using Words = typename Isa::Words;
  using Floats = typename Lanes<Isa::kLanes>::Floats;
  constexpr int kBytes = 4 * Isa::kLanes;
  UNROLL for (int part = 0; part < kAll / Isa::kLanes; ++part) {
    UNROLL for (int r = 0; r < R; ++r) {
      Words low = loaded<Words>(w[r] + part * kBytes), high;
      Floats of_weights;
      if constexpr (Format::kBits == 8) {
        low ^= 0x80808080u;
        high = loaded<Words>(w[r] + kColumns / 2 + part * kBytes) ^ 0x80808080u;
      } else {
        high = (low >> 4) & 0x0f0f0f0fu;
        low &= 0x0f0f0f0fu;
        of_weights = spread_scales<Isa::kLanes>(scales[r] + part * Isa::kLanes / 4);
      }
      UNROLL for (int m = 0; m < M; ++m) {
        auto sum = loaded<typename Isa::Ints>(x[m]->start + part * Isa::kLanes);
        sum = Isa::dot(sum, low, loaded<Words>(x[m]->low + part * kBytes));
        sum = Isa::dot(sum, high, loaded<Words>(x[m]->high + part * kBytes));
        Floats scale = loaded<Floats>(x[m]->scales + part * Isa::kLanes);
        if constexpr (Format::kBits == 4) scale *= of_weights;
        sums[r][m] += __builtin_convertvector(sum, Floats) * scale;
      }
    }
  }
}

// R rows of weights by M rows of x.
template <typename Isa, typename Format, int M, int R>
INLINE void dots(const Product& p, const Block* x, int64_t first, int64_t row, const Result& out) {
  constexpr int kBytes = kColumns * Format::kBits / 8, kScales = kColumns / kGroup;
  const int64_t blocks = (p.k + kColumns - 1) / kColumns, rest = p.k % kColumns;
  const uint8_t* w[R];
  const bf16* scales[R] = {};
  const Block* of_x[M];
  typename Lanes<Isa::kLanes>::Floats sums[R][M] = {};
  for (int r = 0; r < R; ++r) {
    w[r] = p.values + (row + r) * p.k * Format::kBits / 8;
    if (Format::kBits == 4) scales[r] = (const bf16*)p.scales + (row + r) * (p.k / kGroup);
  }
  for (int m = 0; m < M; ++m) of_x[m] = x + m * blocks;
  for (int64_t b = 0; b < p.k / kColumns; ++b) {
    for (int r = 0; r < R; ++r)  // rows are too short for the processor to foresee the next ones
      for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(w[r] + R * p.k * Format::kBits / 8 + i);
    add_block<Isa, Format, M, R>(w, scales, of_x, sums);
    for (int r = 0; r < R; ++r) w[r] += kBytes, scales[r] += kScales;
    for (int m = 0; m < M; ++m) ++of_x[m];
  }
  if (rest) {  // the row's end, and zeros
    uint8_t last[R][kBytes] = {};
    bf16 last_scales[R][kScales] = {};
    for (int r = 0; r < R; ++r) {
      w[r] = (uint8_t*)std::memcpy(last[r], w[r], rest * Format::kBits / 8);
      if (Format::kBits == 4)
        scales[r] = (bf16*)std::memcpy(last_scales[r], scales[r], rest / kGroup * sizeof(bf16));
    }
    add_block<Isa, Format, M, R>(w, scales, of_x, sums);
  }
  for (int r = 0; r < R; ++r)
    for (int m = 0; m < M; ++m) {
      float sum = total<Isa::kLanes>(sums[r][m]);
      if (Format::kBits == 8) sum *= ((const float*)p.scales)[row + r];
      out.put((first + m) * p.n + row + r, sum);
    }
}

// Up to four rows of x keep their sums in registers; more take the weights from the cache again.
template <typename Isa, typename Format, int R>
INLINE void by_fours(const Product& p, const Block* x, int64_t first, int64_t count, int64_t row, const Result& out) {
  const int64_t blocks = (p.k + kColumns - 1) / kColumns;
  for (int64_t end = first + count; first < end; first += 4, x += 4 * blocks) {
    switch (end - first) {
      case 1: dots<Isa, Format, 1, R>(p, x, first, row, out); break;
      case 2: dots<Isa, Format, 2, R>(p, x, first, row, out); break;
      case 3: dots<Isa, Format, 3, R>(p, x, first, row, out); break;
      default: dots<Isa, Format, 4, R>(p, x, first, row, out);
    }
  }
}

template <typename Isa, typename Format>
INLINE void few(const Product& p, const Block* x, int64_t first, int64_t count, int64_t row, int64_t end, Result out) {
  constexpr int kAtOnce = 4;  // a sum does not wait for the one before it
  for (; row + kAtOnce <= end; row += kAtOnce) by_fours<Isa, Format, kAtOnce>(p, x, first, count, row, out);
  for (; row < end; ++row) by_fours<Isa, Format, 1>(p, x, first, count, row, out);
}

// Both of an instruction set: a row of x in 8 bits, and some rows of x by rows of weights.
template <typename Format>
struct Kernels {
  void (*round)(const Product&, int64_t row, Block*);
  void (*few)(const Product&, const Block*, int64_t first, int64_t count, int64_t row, int64_t end, Result);
};

#define KERNELS_OF(name, Isa, attributes)                                                                 \
  template <typename Format>                                                                              \
  attributes void name##_round(const Product& p, int64_t row, Block* out) {                               \
    round_row<Format>(p, row, out);                                                                       \
  }                                                                                                       \
  template <typename Format>                                                                              \
  attributes void name##_few(const Product& p, const Block* x, int64_t first, int64_t count, int64_t row, \
                             int64_t end, Result out) {                                                   \
    few<Isa, Format>(p, x, first, count, row, end, out);                                                  \
  }
KERNELS_OF(plain, Plain, )
KERNELS_OF(avx2, Avx2, __attribute__((target("avx2,fma"))))
KERNELS_OF(avx_vnni, AvxVnni, __attribute__((target("avx2,fma"))))
KERNELS_OF(avx512_vnni, Avx512Vnni,
           __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))))

template <typename Format>
Kernels<Format> kernels_of(Isa isa) {
  switch (isa) {
    case kPlain: return {plain_round<Format>, plain_few<Format>};
    case kAvx2:
    case kAvx512: return {avx2_round<Format>, avx2_few<Format>};
    case kAvxVnni: return {avx_vnni_round<Format>, avx_vnni_few<Format>};
    default: return {avx512_vnni_round<Format>, avx512_vnni_few<Format>};
  }
}

// ---- more rows, by AMX ----

AMX inline void store_run(__m512i integers, __m512 scale, bf16* out) {
  const __m512 values = _mm512_mul_ps(_mm512_cvtepi32_ps(integers), scale);
  _mm256_storeu_si256((__m256i*)out, (__m256i)_mm512_cvtneps_pbh(values));
}

template <typename Format>
AMX void widen_row(const Product& p, int64_t row, bf16* out) {
  const uint8_t* w = p.values + row * p.k * Format::kBits / 8;
  if constexpr (Format::kBits == 8) {
    const __m512 scale = _mm512_set1_ps(((const float*)p.scales)[row]);
    for (int64_t k = 0; k < p.k; k += kRun)
      store_run(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(w + k))), scale, out + k);
  } else {
    const bf16* scales = (const bf16*)p.scales + row * (p.k / kGroup);
    const __m512i zero = _mm512_set1_epi32(Format::kZero), four_bits = _mm512_set1_epi32(15);
    for (int64_t k = 0; k < p.k; k += kGroup) {
      const __m512 scale = _mm512_set1_ps(widen(scales[k / kGroup]));
      const __m512i pairs = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(w + k / 2)));
      store_run(_mm512_sub_epi32(_mm512_and_si512(pairs, four_bits), zero), scale, out + k);
      store_run(_mm512_sub_epi32(_mm512_srli_epi32(pairs, 4), zero), scale, out + k + kRun);
    }
  }
}

template <typename Format, typename Out>
void many(ffi::ThreadPool& pool, const Product& p, Out* out) {
  const auto weights = [&](int64_t row, int64_t end) -> const bf16* {
    thread_local std::unique_ptr<bf16, decltype(&std::free)> wide(nullptr, &std::free);
    thread_local int64_t room = 0;
    if (room < kBlock * p.k) {
      wide.reset((bf16*)std::aligned_alloc(64, kBlock * p.k * sizeof(bf16)));
      room = wide ? kBlock * p.k : 0;
    }
    for (int64_t i = row; wide && i < end; ++i) widen_row<Format>(p, i, wide.get() + (i - row) * p.k);
    return wide.get();
  };
  many_by_tiles(pool, p, p.x, weights, out);
}

template <typename Format>
void multiply(ffi::ThreadPool& pool, Isa isa, const Product& p, Result out) {
  if (p.t > kMost && isa == kAmx && p.has_tiles())
    return out.is_wide ? many<Format>(pool, p, (float*)out.at) : many<Format>(pool, p, (bf16*)out.at);
  const int64_t blocks = (p.k + kColumns - 1) / kColumns;
  std::unique_ptr<Block, decltype(&std::free)> x(
      (Block*)std::aligned_alloc(64, std::max<int64_t>(1, p.t * blocks) * sizeof(Block)), &std::free);
  if (x == nullptr) throw std::bad_alloc();
  const auto kernels = kernels_of<Format>(isa);
  const auto round = [&](int64_t row) { kernels.round(p, row, x.get() + row * blocks); };
  if (p.t > kMost) spread(pool, p.t, round);
  else for (int64_t row = 0; row < p.t; ++row) round(row);
  spread(pool, (p.n + kRows - 1) / kRows, [&](int64_t i) {
    for (int64_t first = 0; first < p.t; first += kMost)
      kernels.few(p, x.get() + first * blocks, first, std::min<int64_t>(kMost, p.t - first), i * kRows,
                  std::min(p.n, (i + 1) * kRows), out);
  });
}

template <typename Format>
ffi::Error linear(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> x, ffi::AnyBuffer values, ffi::AnyBuffer scales,
                  ffi::Result<ffi::AnyBuffer> out, int64_t isa) {
  const auto left = x.dimensions(), right = values.dimensions(), of_rows = scales.dimensions();
  const bool is_int4 = Format::kBits == 4;
  if (left.size() != 2 || right.size() != 2 || right[1] * 8 != left[1] * Format::kBits ||
      of_rows.size() != (is_int4 ? 2 : 1) || of_rows[0] != right[0] || (is_int4 && of_rows[1] * kGroup != left[1]))
    return ffi::Error::InvalidArgument("a quantized linear layer takes x [T, K], values [N, K bits] and their scales");
  const Product p{{left[0], right[0], left[1]}, (const bf16*)x.untyped_data(), (const uint8_t*)values.untyped_data(),
                  scales.untyped_data()};
  try {
    multiply<Format>(pool, isa_for(isa), p, Result{out->untyped_data(), out->element_type() == ffi::F32});
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "RESOURCE_EXHAUSTED: no memory for a product's operand");
  }
  return ffi::Error::Success();
}

}  // namespace

#define HANDLER(name, Format)                                      \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, linear<Format>,              \
                                ffi::Ffi::Bind()                   \
                                    .Ctx<ffi::ThreadPool>()        \
                                    .Arg<ffi::Buffer<ffi::BF16>>() \
                                    .Arg<ffi::AnyBuffer>()         \
                                    .Arg<ffi::AnyBuffer>()         \
                                    .Ret<ffi::AnyBuffer>()         \
                                    .Attr<int64_t>("isa"))
HANDLER(LinearInt8, Int8);
HANDLER(LinearInt4, Int4);

}  // namespace jaxinfer
