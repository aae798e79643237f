// Decode attention on CPUs over pages of bfloat16: one query token a row, its keys and values read once.
//
// A part of the work is one row's queries of one kv head. Scores of a page are taken together, with an online softmax
// from page to page in the order of the tokens, so that a row's bits depend on nothing but the row.

#include <cmath>

#include "../cpu.h"

namespace jaxinfer {
namespace {

constexpr int kMostQueries = 16, kMostPage = 128;

// exp of values up to 0, to some 2 units in the last place: 2^n times a polynomial of degree 6 in the rest.
template <int LANES, typename Floats = typename Lanes<LANES>::Floats>
INLINE Floats exponential(Floats x) {
  using Ints = typename Lanes<LANES>::Ints;
  x = x < -87.0f ? Floats{} - 87.0f : x;
  const Floats scaled = x * 1.44269504f - 0.5f;  // rounded towards 0 next, to the nearest
  const Ints whole = __builtin_convertvector(scaled, Ints);
  const Floats n = __builtin_convertvector(whole, Floats);
  const Floats rest = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats y = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * rest + 8.3334519073e-3f;
  y = y * rest + 4.1665795894e-2f;
  y = y * rest + 1.6666665459e-1f;
  y = y * rest + 5.0000001201e-1f;
  y = y * rest * rest + rest + 1.0f;
  return y * bits_of<Floats>((whole + 127) << 23);
}

struct Decode {
  const bf16 *q, *k, *v;
  bf16* out;
  const int32_t *table, *slots, *lengths;
  int64_t heads, kv_heads, width, page, pages, layer, table_width, window;
};

// A head's queries [WIDTH] of pairs of vectors, or its sums.
template <int LANES, int WIDTH>
using Heads = Pair<LANES>[kMostQueries][WIDTH];

// Scores of TOKENS keys with COUNT queries: a key is widened once for all of them, and sums do not wait for each other.
template <int LANES, int WIDTH, int COUNT, int TOKENS>
INLINE void score(const Pair<LANES> (*queries)[WIDTH], const bf16* keys, int64_t stride, float (*scores)[kMostPage],
                  int64_t at) {
  typename Lanes<LANES>::Floats sums[TOKENS][COUNT] = {};
  UNROLL for (int w = 0; w < WIDTH; ++w) {
    UNROLL for (int t = 0; t < TOKENS; ++t) {
      const auto key = widened<LANES>(keys + (at + t) * stride + w * 2 * LANES);
      UNROLL for (int i = 0; i < COUNT; ++i) sums[t][i] += queries[i][w].even * key.even;
      UNROLL for (int i = 0; i < COUNT; ++i) sums[t][i] += queries[i][w].odd * key.odd;
    }
  }
  UNROLL for (int t = 0; t < TOKENS; ++t)
    UNROLL for (int i = 0; i < COUNT; ++i) scores[i][at + t] = total<LANES>(sums[t][i]);
}

// Turns scores of a page into weights, with the largest score yet as 1, and what was summed before accordingly.
template <int LANES, int WIDTH>
INLINE void weigh(float* scores, int64_t first, int64_t count, float& most, float& weights, Pair<LANES>* sums) {
  float top = most;
  for (int64_t t = first; t < count; ++t) top = std::max(top, scores[t]);
  const float shrink = std::exp(most - top);
  UNROLL for (int w = 0; w < WIDTH; ++w) {
    sums[w].even *= shrink;
    sums[w].odd *= shrink;
  }
  weights *= shrink;
  most = top;
  for (int64_t t = first; t < count; t += LANES) {
    typename Lanes<LANES>::Floats weight;
    for (int j = 0; j < LANES; ++j) weight[j] = t + j < count ? scores[t + j] - top : -87.0f;
    weight = exponential<LANES>(weight);
    for (int64_t j = 0; j < std::min<int64_t>(LANES, count - t); ++j) weights += scores[t + j] = weight[j];
  }
}

// Adds a page's values, weighted, to the sums of COUNT queries: a value is widened once for all of them.
template <int LANES, int WIDTH, int COUNT>
INLINE void add(const float (*weights)[kMostPage], const bf16* values, int64_t stride, int64_t first, int64_t count,
                Pair<LANES> (*sums)[WIDTH]) {
  for (int w = 0; w < WIDTH; ++w) {
    Pair<LANES> some[COUNT];
    UNROLL for (int i = 0; i < COUNT; ++i) some[i] = sums[i][w];
    for (int64_t t = first; t < count; ++t) {
      const auto value = widened<LANES>(values + t * stride + w * 2 * LANES);
      UNROLL for (int i = 0; i < COUNT; ++i) {
        some[i].even += weights[i][t] * value.even;
        some[i].odd += weights[i][t] * value.odd;
      }
    }
    UNROLL for (int i = 0; i < COUNT; ++i) sums[i][w] = some[i];
  }
}

// LANES: of a vector of the instruction set; the compiler keeps longer ones in memory. WIDTH: pairs of vectors of a head.
template <int LANES, int WIDTH>
struct Attention {
  const Decode& d;
  const int64_t row, kv_head;
  Heads<LANES, WIDTH> queries, sums = {};
  float most[kMostQueries], weights[kMostQueries] = {};

  // What a page's tokens from first to count are to COUNT queries from one on.
  template <int COUNT>
  INLINE void take(int64_t from, const bf16* keys, const bf16* values, int64_t first, int64_t count) {
    alignas(64) float scores[COUNT][kMostPage];
    int64_t t = first;
    for (; t + 1 < count; t += 2) {
      // The processor sees no stream in how values are read.
      if (from == 0)
        for (int64_t at = t * d.width; at < (t + 2) * d.width; at += 64 / sizeof(bf16)) __builtin_prefetch(values + at);
      score<LANES, WIDTH, COUNT, 2>(queries + from, keys, d.width, scores, t);
    }
    if (t < count) score<LANES, WIDTH, COUNT, 1>(queries + from, keys, d.width, scores, t);
    for (int i = 0; i < COUNT; ++i)
      weigh<LANES, WIDTH>(scores[i], first, count, most[from + i], weights[from + i], sums[from + i]);
    add<LANES, WIDTH, COUNT>(scores, values, d.width, first, count, sums + from);
  }

  INLINE void run() {
    const int64_t count = d.heads / d.kv_heads, length = d.lengths[row];
    const bf16* q = d.q + (row * d.heads + kv_head * count) * d.width;
    bf16* out = d.out + (row * d.heads + kv_head * count) * d.width;
    const float scale = 1.0f / std::sqrt(float(d.width));
    for (int64_t i = 0; i < count; ++i) {
      most[i] = -3.0e38f;
      for (int w = 0; w < WIDTH; ++w) {
        queries[i][w] = widened<LANES>(q + i * d.width + w * 2 * LANES);
        queries[i][w].even *= scale;
        queries[i][w].odd *= scale;
      }
    }
    const int64_t low = d.window ? std::max<int64_t>(0, length - d.window) : 0;
    for (int64_t at = low / d.page; at * d.page < length; ++at) {
      const int64_t page = d.table[d.slots[row] * d.table_width + at];
      const int64_t place = ((d.layer * d.pages + page) * d.kv_heads + kv_head) * d.page * d.width;
      const int64_t first = std::max<int64_t>(0, low - at * d.page);
      const int64_t last = std::min<int64_t>(d.page, length - at * d.page);
      int64_t i = 0;
      for (; i + 4 <= count; i += 4) take<4>(i, d.k + place, d.v + place, first, last);
      for (; i + 2 <= count; i += 2) take<2>(i, d.k + place, d.v + place, first, last);
      if (i < count) take<1>(i, d.k + place, d.v + place, first, last);
    }
    for (int64_t i = 0; i < count; ++i)
      for (int w = 0; w < WIDTH; ++w)
        for (int j = 0; j < LANES; ++j) {
          bf16* pair = out + i * d.width + (w * LANES + j) * 2;
          pair[0] = narrow(length > 0 ? sums[i][w].even[j] / weights[i] : 0.0f);
          pair[1] = narrow(length > 0 ? sums[i][w].odd[j] / weights[i] : 0.0f);
        }
  }
};

template <int LANES, int WIDTH>
INLINE void attend(const Decode& d, int64_t row, int64_t kv_head) {
  Attention<LANES, WIDTH>{d, row, kv_head}.run();
}

#define OF_WIDTH(name, lanes, attributes)                               \
  attributes void name(const Decode& d, int64_t row, int64_t kv_head) { \
    switch (d.width) {                                                  \
      case 64: return attend<lanes, 32 / lanes>(d, row, kv_head);       \
      case 128: return attend<lanes, 64 / lanes>(d, row, kv_head);      \
      default: return attend<lanes, 128 / lanes>(d, row, kv_head);      \
    }                                                                   \
  }
OF_WIDTH(attend_avx512, 16, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx2,prefer-vector-width=512"))))
OF_WIDTH(attend_avx2, 8, __attribute__((target("avx2,fma"))))
OF_WIDTH(attend_plain, 4, )

ffi::Error decode(ffi::ThreadPool pool, ffi::Buffer<ffi::BF16> q, ffi::Buffer<ffi::BF16> k, ffi::Buffer<ffi::BF16> v,
                  ffi::BufferR0<ffi::S32> layer, ffi::BufferR2<ffi::S32> table, ffi::BufferR1<ffi::S32> slots,
                  ffi::BufferR1<ffi::S32> lengths, ffi::Result<ffi::Buffer<ffi::BF16>> out, int64_t window, int64_t isa) {
  const auto rows = q.dimensions(), pages = k.dimensions();
  if (rows.size() != 3 || pages.size() != 5 || rows[2] != pages[4] || rows[1] % pages[2])
    return ffi::Error::InvalidArgument("decode attention takes q [B, N, H] and pages [L, P, K, page, H]");
  if (rows[2] != 64 && rows[2] != 128 && rows[2] != 256)
    return ffi::Error::InvalidArgument("decode attention takes heads of 64, 128 or 256");
  if (rows[1] / pages[2] > kMostQueries || pages[3] > kMostPage)
    return ffi::Error::InvalidArgument("decode attention takes up to 16 queries a kv head and pages of up to 128");
  const Decode d{(const bf16*)q.untyped_data(), (const bf16*)k.untyped_data(), (const bf16*)v.untyped_data(),
                 (bf16*)out->untyped_data(), table.typed_data(), slots.typed_data(), lengths.typed_data(),
                 rows[1], pages[2], rows[2], pages[3], pages[1], layer.typed_data()[0], table.dimensions()[1], window};
  const auto best = isa_for(isa) >= kAvx512 ? attend_avx512 : isa_for(isa) >= kAvx2 ? attend_avx2 : attend_plain;
  spread(pool, rows[0] * d.kv_heads, [&](int64_t i) { best(d, i / d.kv_heads, i % d.kv_heads); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(DecodeAttention, decode,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::BF16>>()
                                  .Attr<int64_t>("window")
                                  .Attr<int64_t>("isa"));

}  // namespace jaxinfer
