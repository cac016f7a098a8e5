#include <stdint.h>

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define TS_FMA(a, b, c) __builtin_fmaf(a, b, c)
#define TS_FMAD(a, b, c) __builtin_fma(a, b, c)
#else
#define TS_FMA(a, b, c) ((a) * (b) + (c))
#define TS_FMAD(a, b, c) ((a) * (b) + (c))
#endif

#define TS_INLINE static inline __attribute__((always_inline))

/* Whole registers of AVX-512, of which compilers fill one half by themselves. */
#if defined(__AVX512F__) && !defined(__clang__) && __GNUC__ >= 8
#define TS_WIDE __attribute__((target("prefer-vector-width=512")))
#else
#define TS_WIDE
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GLIBC_PREREQ) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
#define TS_SIMD __attribute__((simd("notinbranch")))
#endif
#endif
#ifndef TS_SIMD
#define TS_SIMD
#endif

/* Of x86 processors only those with AVX-512 convert vectors of 64-bit integers. The others add the
   two words as numbers, which rounds once; for a float, where a double cannot hold the integer, what
   it loses is kept as one bit, so that rounding the double rounds rightly. */
#if defined(__x86_64__) && !defined(__AVX512DQ__)
#define TS_FROM_WORDS 1
#else
#define TS_FROM_WORDS 0
#endif

/* The extremes: y on a tie, NaN if one of the two is. Two selections, since gcc makes no vector code
   of ``(x < y) | (x != x) ? x : y``. */

TS_INLINE float ts_minimum_f32(float x, float y) {
  const float best = x < y ? x : y;
  return x != x ? x : best;
}

TS_INLINE double ts_minimum_f64(double x, double y) {
  const double best = x < y ? x : y;
  return x != x ? x : best;
}

TS_INLINE float ts_maximum_f32(float x, float y) {
  const float best = x > y ? x : y;
  return x != x ? x : best;
}

TS_INLINE double ts_maximum_f64(double x, double y) {
  const double best = x > y ? x : y;
  return x != x ? x : best;
}

TS_INLINE double ts_i64_to_f64(int64_t x) {
#if TS_FROM_WORDS
  const uint64_t low = ((uint64_t)x & UINT64_C(0xffffffff)) | UINT64_C(0x4330000000000000);
  const uint64_t high = ((uint64_t)x >> 32) ^ UINT64_C(0x4530000080000000);
  double l, h;
  __builtin_memcpy(&l, &low, 8);
  __builtin_memcpy(&h, &high, 8);
  return (h - 0x1.00000801p84) + l;
#else
  return (double)x;
#endif
}

TS_INLINE float ts_i64_to_f32(int64_t x) {
#if TS_FROM_WORDS
  const uint64_t lost = (((uint64_t)x & 2047) + 2047) & 2048;
  const int64_t odd = (int64_t)(((uint64_t)x & ~UINT64_C(2047)) | lost);
  const int64_t held = (uint64_t)x + (UINT64_C(1) << 53) > UINT64_C(1) << 54 ? odd : x;
  return (float)ts_i64_to_f64(held);
#else
  return (float)x;
#endif
}

TS_INLINE uint32_t ts_bits(float x) {
  uint32_t b;
  __builtin_memcpy(&b, &x, 4);
  return b;
}

TS_INLINE float ts_float(uint32_t b) {
  float x;
  __builtin_memcpy(&x, &b, 4);
  return x;
}

TS_INLINE int64_t ts_bits64(double x) {
  int64_t b;
  __builtin_memcpy(&b, &x, 8);
  return b;
}

TS_INLINE double ts_double(int64_t b) {
  double x;
  __builtin_memcpy(&x, &b, 8);
  return x;
}

TS_INLINE float ts_bf16_to_f32(uint16_t x) {
  return ts_float((uint32_t)x << 16);
}

TS_INLINE uint16_t ts_f32_to_bf16(float x) {
  uint32_t b = ts_bits(x);
  uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

TS_INLINE float ts_f16_to_f32(uint16_t x) {
  uint32_t magnitude = (uint32_t)(x & 0x7fffu) << 13;
  float scaled = ts_float(magnitude) * 0x1p112f;
  uint32_t b = magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : ts_bits(scaled);
  return ts_float(b | ((uint32_t)(x & 0x8000u) << 16));
}

TS_INLINE uint16_t ts_f32_to_f16(float x) {
  uint32_t b = ts_bits(x) & 0x7fffffffu;
  uint32_t sign = (ts_bits(x) >> 16) & 0x8000u;
  /* adding 0.5 rounds a result below 2**-14 at the last bit of a denormal half */
  uint32_t small = ts_bits(ts_float(b) + 0.5f) - 0x3f000000u;
  uint32_t normal = (b - 0x38000000u + 0xfffu + ((b >> 13) & 1u)) >> 13;
  uint32_t h = b < 0x38800000u ? small : normal;
  h = b >= 0x47800000u ? 0x7c00u : h;
  h = b > 0x7f800000u ? 0x7e00u : h;
  return (uint16_t)(sign | h);
}

TS_INLINE float ts_pow2(int32_t n) {
  return ts_float((uint32_t)(n + 127) << 23);
}

TS_INLINE float ts_exp(float x) {
  float c = x > 89.0f ? 89.0f : x;
  c = x < -104.0f ? -104.0f : c;
  /* half the nearest integer and the exponent's bias, by the last bits */
  float t = TS_FMA(c, 0x1.715476p-1f, 0x1.8000fep+23f);
  float n = t - 0x1.8000fep+23f;
  float r = TS_FMA(n, -0x1.62e4p+0f, c);
  r = TS_FMA(n, -0x1.7f7d1cp-19f, r);
  float p = 0x1.ab8282p-16f;
  p = TS_FMA(p, r, 0x1.a57618p-13f);
  p = TS_FMA(p, r, 0x1.6bff36p-10f);
  p = TS_FMA(p, r, 0x1.110bp-7f);
  p = TS_FMA(p, r, 0x1.55556cp-5f);
  p = TS_FMA(p, r, 0x1.55555ep-3f);
  p = TS_FMA(p, r, 0.5f);
  p = 1.0f + TS_FMA(p, r * r, r);
  float s = ts_float(ts_bits(t) << 23); /* twice a factor: results reach denormals and infinity */
  return p * s * s;
}

TS_INLINE float ts_exp_scaled(float x, float shift) {
  /* exp with one power of two, whose bias is in the last bits of shift */
  float t = TS_FMA(x, 0x1.715476p+0f, shift);
  float n = t - shift;
  float r = TS_FMA(n, -0x1.62e4p-1f, x);
  r = TS_FMA(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6a4b38p-10f;
  p = TS_FMA(p, r, 0x1.12398ep-7f);
  p = TS_FMA(p, r, 0x1.5558b2p-5f);
  p = TS_FMA(p, r, 0x1.555492p-3f);
  p = TS_FMA(p, r, 0x1.fffffcp-2f);
  p = 1.0f + TS_FMA(p, r * r, r);
  return p * ts_float(ts_bits(t) << 23);
}

TS_INLINE float ts_exp_near(float x) {
  /* exp for -87 <= x <= 88: no overflow */
  return ts_exp_scaled(x, 0x1.8000fep+23f);
}

TS_INLINE float ts_exp_down(float x) {
  /* exp for x <= 0: a factor of two powers of two, the first of which is no denormal */
  return ts_exp_scaled(x < -104.0f ? -104.0f : x, 0x1.80012ep+23f) * 0x1p-24f;
}

TS_INLINE float ts_exp2(float x) {
  float c = x > 129.0f ? 129.0f : x;
  c = x < -151.0f ? -151.0f : c;
  float t = c + 0x1.8p+23f;
  float r = c - (t - 0x1.8p+23f);
  float p = 0x1.e09e14p-17f;
  p = TS_FMA(p, r, 0x1.440de4p-13f);
  p = TS_FMA(p, r, 0x1.5da59p-10f);
  p = TS_FMA(p, r, 0x1.3b2a5cp-7f);
  p = TS_FMA(p, r, 0x1.c6b06ep-5f);
  p = TS_FMA(p, r, 0x1.ebfbep-3f);
  p = TS_FMA(p, r, 0x1.62e43p-1f);
  p = TS_FMA(p, r, 1.0f);
  int32_t k = (int32_t)(ts_bits(t) - 0x4b400000u);
  int32_t h = k >> 1;
  return p * ts_pow2(h) * ts_pow2(k - h);
}

TS_INLINE float ts_expm1(float x) {
  float c = x > 89.0f ? 89.0f : x;
  c = x < -104.0f ? -104.0f : c;
  float t = TS_FMA(c, 0x1.715476p+0f, 0x1.8p+23f);
  float n = t - 0x1.8p+23f;
  float r = TS_FMA(n, -0x1.62e4p-1f, c);
  r = TS_FMA(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.a242f8p-13f;
  p = TS_FMA(p, r, 0x1.6d3c98p-10f);
  p = TS_FMA(p, r, 0x1.111004p-7f);
  p = TS_FMA(p, r, 0x1.5554f6p-5f);
  p = TS_FMA(p, r, 0x1.555556p-3f);
  p = TS_FMA(p, r, 0.5f);
  p = TS_FMA(p, r * r, r);
  int32_t k = (int32_t)(ts_bits(t) - 0x4b400000u);
  int32_t h = k >> 1;
  float s = ts_pow2(h);
  float y = TS_FMA(s, p, s - ts_pow2(h - k)) * ts_pow2(k - h);
  return x == 0.0f ? x : y;
}

TS_INLINE float ts_log(float x) {
  float tiny = x < 0x1p-126f ? 0x1p+23f : 1.0f;
  float shift = x < 0x1p-126f ? 23.0f : 0.0f;
  uint32_t b = ts_bits(x * tiny);
  int32_t k = (int32_t)(b - 0x3f3504f3u) >> 23;
  float f = ts_float(b - ((uint32_t)k << 23)) - 1.0f; /* sqrt(1/2) <= 1 + f < sqrt(2) */
  float e = (float)k - shift;
  float s = f * f;
  float p = -0x1.38d8f4p-4f;
  p = TS_FMA(p, f, 0x1.056b3p-3f);
  p = TS_FMA(p, f, -0x1.0d858ap-3f);
  p = TS_FMA(p, f, 0x1.22d7bep-3f);
  p = TS_FMA(p, f, -0x1.54720ap-3f);
  p = TS_FMA(p, f, 0x1.99a026p-3f);
  p = TS_FMA(p, f, -0x1.000228p-2f);
  p = TS_FMA(p, f, 0x1.555554p-2f);
  p = TS_FMA(p, f * s, e * -0x1.bd0106p-13f);
  p = TS_FMA(s, -0.5f, p) + f;
  p = TS_FMA(e, 0x1.63p-1f, p);
  p = x < __builtin_inff() ? p : x;
  return x > 0.0f ? p : (x == 0.0f ? -__builtin_inff() : __builtin_nanf(""));
}

TS_INLINE float ts_log2(float x) {
  float tiny = x < 0x1p-126f ? 0x1p+23f : 1.0f;
  float shift = x < 0x1p-126f ? 23.0f : 0.0f;
  uint32_t b = ts_bits(x * tiny);
  int32_t k = (int32_t)(b - 0x3f3504f3u) >> 23;
  float f = ts_float(b - ((uint32_t)k << 23)) - 1.0f;
  float e = (float)k - shift;
  float s = f * f;
  float p = -0x1.38d8f4p-4f;
  p = TS_FMA(p, f, 0x1.056b3p-3f);
  p = TS_FMA(p, f, -0x1.0d858ap-3f);
  p = TS_FMA(p, f, 0x1.22d7bep-3f);
  p = TS_FMA(p, f, -0x1.54720ap-3f);
  p = TS_FMA(p, f, 0x1.99a026p-3f);
  p = TS_FMA(p, f, -0x1.000228p-2f);
  p = TS_FMA(p, f, 0x1.555554p-2f);
  p = TS_FMA(s, -0.5f, p * (f * s));
  /* log2(e) in two parts: f and p separately, so that f loses nothing */
  float low = TS_FMA(f, 0x1.d94aep-18f, p * 0x1.715476p+0f);
  p = TS_FMA(f, 0x1.7154p+0f, low) + e;
  p = x < __builtin_inff() ? p : x;
  return x > 0.0f ? p : (x == 0.0f ? -__builtin_inff() : __builtin_nanf(""));
}

TS_INLINE float ts_log1p(float x) {
  float u = 1.0f + x;
  float y = ts_log(u) + (x - (u - 1.0f)) / u;
  y = x == __builtin_inff() ? x : y;
  y = x == -1.0f ? -__builtin_inff() : y;
  return x == 0.0f ? x : y;
}

TS_INLINE float ts_sigmoid(float x) {
  return 1.0f / (1.0f + ts_exp(-x));
}

TS_INLINE float ts_tanh(float x) {
  float a = __builtin_fabsf(x);
  float s = x * x;
  float p = -0x1.734efep-8f;
  p = TS_FMA(p, s, 0x1.51971ap-6f);
  p = TS_FMA(p, s, -0x1.b826fep-5f);
  p = TS_FMA(p, s, 0x1.110688p-3f);
  p = TS_FMA(p, s, -0x1.55553p-2f);
  p = TS_FMA(p * s, x, x);
  float t = a > 10.0f ? 10.0f : a;
  float big = 1.0f - 2.0f / (ts_exp_near(t + t) + 1.0f);
  return __builtin_copysignf(a < 0.625f ? p : big, x);
}

TS_INLINE float ts_erf(float x) {
  float a = __builtin_fabsf(x);
  float s = x * x;
  float p = 0x1.4f675ep-14f;
  p = TS_FMA(p, s, -0x1.a60a2ep-11f);
  p = TS_FMA(p, s, 0x1.544a1ap-8f);
  p = TS_FMA(p, s, -0x1.b8011ap-6f);
  p = TS_FMA(p, s, 0x1.ce2d64p-4f);
  p = TS_FMA(p, s, -0x1.81274p-2f);
  p = TS_FMA(p, s, 0x1.06eba8p-3f);
  p = TS_FMA(p, x, x);
  float t = a > 3.95f ? 3.95f : a;
  float q = -0x1.78d116p-17f;
  q = TS_FMA(q, t, 0x1.52795cp-12f);
  q = TS_FMA(q, t, -0x1.dd6ba8p-9f);
  q = TS_FMA(q, t, 0x1.855122p-6f);
  q = TS_FMA(q, t, -0x1.b32568p-4f);
  q = TS_FMA(q, t, -0x1.45328ep-1f);
  q = TS_FMA(q, t, -0x1.0778dcp-3f);
  q = 1.0f - ts_exp_near(TS_FMA(q, t, -t));
  return a < 0.925f ? p : __builtin_copysignf(q, x);
}

TS_INLINE float ts_erf_beside_one(float x) {
  /* erf where only errors beside 1 count: below 2**-23, also at small arguments */
  float a = __builtin_fabsf(x);
  float t = a > 3.95f ? 3.95f : a;
  float q = -0x1.0796ap-15f;
  q = TS_FMA(q, t, 0x1.43a73p-12f);
  q = TS_FMA(q, t, -0x1.0e85dep-10f);
  q = TS_FMA(q, t, -0x1.19dbc4p-11f);
  q = TS_FMA(q, t, 0x1.40df54p-6f);
  q = TS_FMA(q, t, -0x1.a58f44p-4f);
  q = TS_FMA(q, t, -0x1.45f022p-1f);
  q = TS_FMA(q, t, -0x1.06ec3ap-3f);
  return __builtin_copysignf(1.0f - ts_exp_near(TS_FMA(q, t, -t)), x);
}

TS_INLINE float ts_sin_quarter(float r, int32_t q) {
  /* sin(r + q * pi/2) for |r| <= pi/4 */
  float s = r * r;
  float a = 0x1.7c367ap-19f;
  a = TS_FMA(a, s, -0x1.a05968p-13f);
  a = TS_FMA(a, s, 0x1.111174p-7f);
  a = TS_FMA(a, s, -0x1.555556p-3f);
  a = TS_FMA(a * s, r, r);
  float b = -0x1.36147cp-22f;
  b = TS_FMA(b, s, 0x1.a071b6p-16f);
  b = TS_FMA(b, s, -0x1.6c175ep-10f);
  b = TS_FMA(b, s, 0x1.555556p-5f);
  b = TS_FMA(b, s * s, TS_FMA(s, -0.5f, 1.0f));
  return ts_float(ts_bits((q & 1) ? b : a) ^ ((uint32_t)(q & 2) << 30));
}

TS_INLINE float ts_wave(float x, int32_t quarters) {
  /* sin(x + quarters * pi/2). x * 2/pi without multiples of four: a float from 2**50 on is one of
     2**27, and so on, which leave the leading bits of 2/pi without effect. */
  float a = __builtin_fabsf(x);
  double high = a < 0x1p+50f    ? 0x1.45f306dc9c883p-1
                : a < 0x1p+77f  ? -0x1.1b1bbead603d9p-28
                : a < 0x1p+104f ? 0x1.4a7f09d5f47d5p-54
                                : -0x1.505c1596447e5p-81;
  double low = a < 0x1p+50f    ? -0x1.6b01ec5417056p-55
               : a < 0x1p+77f  ? 0x1.5f47d4d377037p-82
               : a < 0x1p+104f ? -0x1.6447e493ad4cep-109
                               : 0x1.b14acc9e21c82p-135;
  double d = (double)x;
  double t = TS_FMAD(d, high, 0x1.8p+52);
  double f = __builtin_fma(d, high, -(t - 0x1.8p+52)); /* exact */
  f = TS_FMAD(d, low, f);
  return ts_sin_quarter((float)(f * 0x1.921fb54442d18p+0), (int32_t)ts_bits64(t) + quarters);
}

TS_INLINE float ts_sin(float x) {
  return x == 0.0f ? x : ts_wave(x, 0);
}

TS_INLINE float ts_cos(float x) {
  return ts_wave(x, 1);
}

/* In double precision: Taylor polynomials on a reduced argument, whose errors are below 1 ulp; and
   libm, where the C library has vector forms (errors below 4 ulp), which compilers are told. */

TS_SIMD double log(double);
TS_INLINE double ts_log_f64(double x) {
  return __builtin_log(x);
}

TS_SIMD double log2(double);
TS_INLINE double ts_log2_f64(double x) {
  return __builtin_log2(x);
}

TS_SIMD double log1p(double);
TS_INLINE double ts_log1p_f64(double x) {
  return __builtin_fabs(x) < 0x1p-60 ? x : __builtin_log1p(x);
}

TS_SIMD double exp2(double);
TS_INLINE double ts_exp2_f64(double x) {
  return __builtin_exp2(x);
}

TS_SIMD double expm1(double);
TS_INLINE double ts_expm1_f64(double x) {
  return __builtin_expm1(x);
}

TS_SIMD double tanh(double);
TS_INLINE double ts_tanh_f64(double x) {
  return __builtin_tanh(x);
}

TS_SIMD double erf(double);
TS_INLINE double ts_erf_f64(double x) {
  return __builtin_erf(x);
}

TS_INLINE double ts_pow2_f64(int64_t n) {
  return ts_double((n + 1023) << 52);
}

TS_INLINE double ts_exp_f64(double x) {
  double c = x > 710.0 ? 710.0 : x;
  c = c < -746.0 ? -746.0 : c;
  double t = TS_FMAD(c, 0x1.71547652b82fep+0, 0x1.8p+52); /* nearest integer, by its last bits */
  double n = t - 0x1.8p+52;
  double r = TS_FMAD(n, -0x1.62e42fee00000p-1, c);
  r = TS_FMAD(n, -0x1.a39ef35793c76p-33, r);
  double p = 0x1.6124613a86d09p-33;
  p = TS_FMAD(p, r, 0x1.1eed8eff8d898p-29);
  p = TS_FMAD(p, r, 0x1.ae64567f544e4p-26);
  p = TS_FMAD(p, r, 0x1.27e4fb7789f5cp-22);
  p = TS_FMAD(p, r, 0x1.71de3a556c734p-19);
  p = TS_FMAD(p, r, 0x1.a01a01a01a01ap-16);
  p = TS_FMAD(p, r, 0x1.a01a01a01a01ap-13);
  p = TS_FMAD(p, r, 0x1.6c16c16c16c17p-10);
  p = TS_FMAD(p, r, 0x1.1111111111111p-7);
  p = TS_FMAD(p, r, 0x1.5555555555555p-5);
  p = TS_FMAD(p, r, 0x1.5555555555555p-3);
  p = TS_FMAD(p, r, 0x1.0000000000000p-1);
  p = 1.0 + TS_FMAD(p, r * r, r);
  int64_t k = ts_bits64(t) - 0x4338000000000000;
  int64_t h = k >> 1; /* two factors, so that results reach denormals and infinity */
  return x != x ? x : p * ts_pow2_f64(h) * ts_pow2_f64(k - h);
}

TS_INLINE double ts_wave_f64(double x, int64_t quarters) {
  /* sin(x + quarters * pi / 2) for |x| < 2**20 */
  double t = TS_FMAD(x, 0x1.45f306dc9c883p-1, 0x1.8p+52);
  double n = t - 0x1.8p+52;
  double r = TS_FMAD(n, -0x1.921fb54400000p+0, x); /* exact products: 33 bits by 20 */
  double m = TS_FMAD(n, -0x1.0b4611a600000p-34, r);
  double e = TS_FMAD(n, -0x1.0b4611a600000p-34, r - m);
  e = TS_FMAD(n, -0x1.3198a2e037073p-69, e);
  r = m + e;
  double s = r * r;
  double sine, cosine;
  {
    double p = 0x1.952c77030ad4ap-49;
    p = TS_FMAD(p, s, -0x1.ae7f3e733b81fp-41);
    p = TS_FMAD(p, s, 0x1.6124613a86d09p-33);
    p = TS_FMAD(p, s, -0x1.ae64567f544e4p-26);
    p = TS_FMAD(p, s, 0x1.71de3a556c734p-19);
    p = TS_FMAD(p, s, -0x1.a01a01a01a01ap-13);
    p = TS_FMAD(p, s, 0x1.1111111111111p-7);
    p = TS_FMAD(p, s, -0x1.5555555555555p-3);
    sine = TS_FMAD(p * s, r, r);
  }
  {
    double p = -0x1.6827863b97d97p-53;
    p = TS_FMAD(p, s, 0x1.ae7f3e733b81fp-45);
    p = TS_FMAD(p, s, -0x1.93974a8c07c9dp-37);
    p = TS_FMAD(p, s, 0x1.1eed8eff8d898p-29);
    p = TS_FMAD(p, s, -0x1.27e4fb7789f5cp-22);
    p = TS_FMAD(p, s, 0x1.a01a01a01a01ap-16);
    p = TS_FMAD(p, s, -0x1.6c16c16c16c17p-10);
    p = TS_FMAD(p, s, 0x1.5555555555555p-5);
    cosine = TS_FMAD(s * s, p, TS_FMAD(s, -0.5, 1.0));
  }
  int64_t q = ts_bits64(t) + quarters;
  double y = q & 1 ? cosine : sine;
  return q & 2 ? -y : y;
}

TS_SIMD double sin(double);
TS_INLINE double ts_sin_f64(double x) {
  double near = __builtin_fabs(x) < 0x1p+20 ? x : 0.0;
  double far = __builtin_sin(x);
  double y = ts_wave_f64(near, 0);
  return __builtin_fabs(x) < 0x1p+20 ? (x == 0.0 ? x : y) : far;
}

TS_SIMD double cos(double);
TS_INLINE double ts_cos_f64(double x) {
  double near = __builtin_fabs(x) < 0x1p+20 ? x : 0.0;
  double far = __builtin_cos(x);
  double y = ts_wave_f64(near, 1);
  return __builtin_fabs(x) < 0x1p+20 ? y : far;
}

TS_INLINE double ts_sigmoid_f64(double x) {
  return 1.0 / (1.0 + ts_exp_f64(-x));
}

/* Cheaper forms for arguments that are not far, of which kernels ask beforehand. */

TS_INLINE int ts_far_turn(float x) {
  return __builtin_fabsf(x) >= 0x1p+16f;
}

TS_INLINE int ts_far_turn_f64(double x) {
  return __builtin_fabs(x) >= 0x1p+20;
}

TS_INLINE int ts_far_quotient(float a, float b) {
  float d = __builtin_fabsf(b);
  return !((__builtin_fabsf(a) < d * 0x1p+23f) & (d < 0x1p+100f));
}

TS_INLINE int ts_far_quotient_f64(double a, double b) {
  double d = __builtin_fabs(b);
  return !((__builtin_fabs(a) < d * 0x1p+52) & (d < 0x1p+900));
}

TS_INLINE float ts_wave_near(float x, int32_t quarters) {
  float t = TS_FMA(x, 0x1.45f306p-1f, 0x1.8p+23f);
  float n = t - 0x1.8p+23f;
  float r = __builtin_fmaf(n, -0x1.921fb6p+0f, x); /* exact */
  r = __builtin_fmaf(n, 0x1.777a5cp-25f, r);
  r = __builtin_fmaf(n, 0x1.ee59dap-50f, r);
  return ts_sin_quarter(r, (int32_t)ts_bits(t) + quarters);
}

TS_INLINE float ts_sin_near(float x) {
  return x == 0.0f ? x : ts_wave_near(x, 0);
}

TS_INLINE float ts_cos_near(float x) {
  return ts_wave_near(x, 1);
}

TS_INLINE double ts_sin_near_f64(double x) {
  return x == 0.0 ? x : ts_wave_f64(x, 0);
}

TS_INLINE double ts_cos_near_f64(double x) {
  return ts_wave_f64(x, 1);
}

TS_INLINE double ts_fmod_near_f64(double a, double b) {
  /* The quotient, rounded, is no less than the true one and its whole part at most one more: what
     is left is a multiple of the smaller last place and no larger than d, hence exact. */
  double x = __builtin_fabs(a);
  double d = __builtin_fabs(b);
  double r = __builtin_fma(-__builtin_trunc(x / d), d, x);
  return __builtin_copysign(r < 0.0 ? r + d : r, a);
}

TS_INLINE double ts_mod_near_f64(double a, double b) {
  return ts_floored_f64(ts_fmod_near_f64(a, b), b);
}

TS_INLINE double ts_floordiv_near_f64(double a, double b) {
  return ts_quotient_f64(a, b, ts_fmod_near_f64(a, b));
}

TS_INLINE float ts_fmod_near(float a, float b) {
  float x = __builtin_fabsf(a);
  float d = __builtin_fabsf(b);
  float r = __builtin_fmaf(-__builtin_truncf(x / d), d, x);
  return __builtin_copysignf(r < 0.0f ? r + d : r, a);
}

TS_INLINE float ts_mod_near(float a, float b) {
  return ts_floored_f32(ts_fmod_near(a, b), b);
}

TS_INLINE float ts_floordiv_near(float a, float b) {
  return ts_quotient_f32(a, b, ts_fmod_near(a, b));
}

TS_INLINE float ts_pow(float x, float y) {
  float a = __builtin_fabsf(x);
  int64_t b = ts_bits64((double)a);
  int64_t k = (b - 0x3fe6a09e667f3bcd) >> 52;
  double m = ts_double(b - k * ((int64_t)1 << 52));
  double z = (m - 1.0) / (m + 1.0);
  double s = z * z;
  double p = 0.2829254210334559;
  p = TS_FMAD(p, s, 0.31990395476019495);
  p = TS_FMAD(p, s, 0.41220929434517833);
  p = TS_FMAD(p, s, 0.5770779419521207);
  p = TS_FMAD(p, s, 0.9617966941147723);
  p = TS_FMAD(p, s, 2.88539008177785);
  double l = TS_FMAD(p, z, (double)k);
  double e = l == 0.0 ? 0.0 : (double)y * l; /* also of infinity */
  e = e > 200.0 ? 200.0 : e;
  e = e < -200.0 ? -200.0 : e;
  double t = e + 0x1.8p+52;
  double r = e - (t - 0x1.8p+52);
  double q = 1.3264087297366994e-06;
  q = TS_FMAD(q, r, 1.5310196021580943e-05);
  q = TS_FMAD(q, r, 0.00015403411523436732);
  q = TS_FMAD(q, r, 0.0013333450128018278);
  q = TS_FMAD(q, r, 0.009618129228691714);
  q = TS_FMAD(q, r, 0.05550410941668257);
  q = TS_FMAD(q, r, 0.24022650695466352);
  q = TS_FMAD(q, r, 0.6931471805458169);
  q = TS_FMAD(q, r, 1.0);
  float v = (float)(q * ts_double((ts_bits64(t) - ts_bits64(0x1.8p+52) + 1023) *
                                  ((int64_t)1 << 52)));
  v = a == 0.0f ? (y < 0.0f ? __builtin_inff() : 0.0f) : v;
  v = a == __builtin_inff() ? (y < 0.0f ? 0.0f : __builtin_inff()) : v;
  int whole = __builtin_rintf(y) == y;
  int odd = whole & (__builtin_rintf(0.5f * y) != 0.5f * y);
  v = odd ? __builtin_copysignf(v, x) : v;
  v = (x < 0.0f) & !whole & (a != __builtin_inff()) ? __builtin_nanf("") : v;
  v = (x != x) | (y != y) ? __builtin_nanf("") : v;
  return (y == 0.0f) | (x == 1.0f) ? 1.0f : v;
}

TS_INLINE float ts_fmod_f32(float a, float b) {
  /* The quotient has up to 277 bits: 50 of them at a time, and each remainder is exact. */
  double x = (double)__builtin_fabsf(a);
  double d = (double)__builtin_fabsf(b);
  double v = 1.0 / d;
  double r = __builtin_fma(-__builtin_trunc(x * (v * 0x1p-250)), d * 0x1p+250, x);
  r = __builtin_fma(-__builtin_trunc(r * (v * 0x1p-200)), d * 0x1p+200, r);
  r = __builtin_fma(-__builtin_trunc(r * (v * 0x1p-150)), d * 0x1p+150, r);
  r = __builtin_fma(-__builtin_trunc(r * (v * 0x1p-100)), d * 0x1p+100, r);
  r = __builtin_fma(-__builtin_trunc(r * (v * 0x1p-50)), d * 0x1p+50, r);
  r = __builtin_fma(-__builtin_trunc(r * v), d, r);
  r = r < 0.0 ? r + d : r;
  r = r >= d ? r - d : r;
  r = d == __builtin_inf() ? x : r;
  r = x == __builtin_inf() ? __builtin_nan("") : r;
  return __builtin_copysignf((float)r, a);
}

/* From m, what fmod leaves: the remainder with the sign of b, and the floored quotient. */
TS_INLINE float ts_floored_f32(float m, float b) {
  return (m != 0.0f) & ((b < 0.0f) != (m < 0.0f)) ? m + b : m;
}

TS_INLINE float ts_quotient_f32(float a, float b, float m) {
  float d = (a - m) / b;
  d = (m != 0.0f) & ((b < 0.0f) != (m < 0.0f)) ? d - 1.0f : d;
  float f = __builtin_floorf(d);
  f = d - f > 0.5f ? f + 1.0f : f;
  return d != 0.0f ? f : __builtin_copysignf(0.0f, a / b);
}

TS_INLINE double ts_floored_f64(double m, double b) {
  return (m != 0.0) & ((b < 0.0) != (m < 0.0)) ? m + b : m;
}

TS_INLINE double ts_quotient_f64(double a, double b, double m) {
  double d = (a - m) / b;
  d = (m != 0.0) & ((b < 0.0) != (m < 0.0)) ? d - 1.0 : d;
  double f = __builtin_floor(d);
  f = d - f > 0.5 ? f + 1.0 : f;
  return d != 0.0 ? f : __builtin_copysign(0.0, a / b);
}

TS_INLINE float ts_rem_f32(float a, float b) {
  return ts_floored_f32(ts_fmod_f32(a, b), b);
}

TS_INLINE float ts_floordiv_f32(float a, float b) {
  float q = ts_quotient_f32(a, b, ts_fmod_f32(a, b));
  return b == 0.0f ? a / b : q;
}

TS_INLINE double ts_rem_f64(double a, double b) {
  return ts_floored_f64(__builtin_fmod(a, b), b);
}

TS_INLINE double ts_floordiv_f64(double a, double b) {
  double q = ts_quotient_f64(a, b, __builtin_fmod(a, b));
  return b == 0.0 ? a / b : q;
}

/* Integer division by zero and by -1 would trap; a zero divisor gives 0 here. */
TS_INLINE int64_t ts_truncdiv(int64_t a, int64_t b) {
  return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

TS_INLINE int64_t ts_fmod(int64_t a, int64_t b) {
  return b == 0 || b == -1 ? 0 : a % b;
}

TS_INLINE int64_t ts_floordiv(int64_t a, int64_t b) {
  int64_t q = ts_truncdiv(a, b);
  int64_t m = ts_fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? q - 1 : q;
}

TS_INLINE int64_t ts_rem(int64_t a, int64_t b) {
  int64_t m = ts_fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

/* Of sizes alone: calls that a compiler takes out of loops. Inlined, nested ones take it minutes. */
static inline __attribute__((noinline, const)) int64_t ts_size_floordiv(int64_t a, int64_t b) {
  return ts_floordiv(a, b);
}

static inline __attribute__((noinline, const)) int64_t ts_size_rem(int64_t a, int64_t b) {
  return ts_rem(a, b);
}

TS_INLINE int64_t ts_position(
    int64_t x, int64_t n, int keep, int64_t given, int64_t number, int64_t *faults) {
  if ((uint64_t)x < (uint64_t)n) return keep ? x : 0;
  if (keep) {
    faults[0] = number;
    faults[1] = given;
    faults[2] = n;
  }
  return 0;
}

TS_INLINE int64_t ts_nearest(int64_t x, int64_t n, int keep) {
  return x < 0 || !keep ? 0 : x < n ? x : n - 1;
}

TS_INLINE double ts_logaddexp(double a, double b) {
  const double low = a < b ? a : b, high = a < b ? b : a;
  if (a != a || b != b) return a + b;
  if (low == high && __builtin_isinf(low)) return low;
  return ts_log1p_f64(ts_exp_f64(low - high)) + high;
}

TS_INLINE double ts_logaddexp_one(double a, double b) {
  const double low = a < b ? a : b, high = a < b ? b : a;
  if (a != a || b != b) return a + b;
  if (low == high && __builtin_isinf(low)) return low;
  return __builtin_log1p(__builtin_exp(low - high)) + high;
}

static inline int64_t ts_ipow(int64_t a, int64_t n) {
  if (n < 0) return a == 1 ? 1 : a == -1 ? ((n & 1) ? -1 : 1) : 0;
  uint64_t y = 1, p = (uint64_t)a;
  for (; n; n >>= 1, p *= p)
    if (n & 1) y *= p;
  return (int64_t)y;
}
