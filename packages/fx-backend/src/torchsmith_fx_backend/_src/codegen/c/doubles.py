"""C source of the float64 functions that kernels call: as ``functions``, in double precision.

``exp``, ``sin`` and ``cos`` are our own: Taylor polynomials on a reduced argument, whose errors are
below 1 ulp. Arguments of sine and cosine from 2**20 on, and the other functions, go to libm: where
the C library has vector forms of these (errors below 4 ulp), compilers are told so.
"""

from __future__ import annotations

import math

_F = "static inline __attribute__((always_inline)) "
SIMD = """\
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GLIBC_PREREQ) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
#define TS_SIMD __attribute__((simd("notinbranch")))
#endif
#endif
#ifndef TS_SIMD
#define TS_SIMD
#endif
"""


def _polynomial(coefficients: list[float], variable: str) -> str:
    """Statements that leave the polynomial's value in ``p``; the highest power comes first."""
    first, *rest = (c.hex() for c in coefficients)
    lines = [f"  double p = {first};"]
    lines += [f"  p = TS_FMAD(p, {variable}, {c});" for c in rest]
    return "\n".join(lines)


def _library(name: str) -> str:
    declared = f"TS_SIMD double {name}(double);\n"
    # A tiny argument is its own log1p, which the vector form makes zero.
    call = f"__builtin_{name}(x)"
    if name == "log1p":
        call = f"__builtin_fabs(x) < 0x1p-60 ? x : {call}"
    return f"{declared}{_F}double ts_{name}_f64(double x) {{\n  return {call};\n}}\n"


_EXP = _polynomial([1 / math.factorial(n) for n in range(13, 1, -1)], "r")
_SIN = _polynomial([(-1) ** n / math.factorial(2 * n + 1) for n in range(8, 0, -1)], "s")
_COS = _polynomial([(-1) ** n / math.factorial(2 * n) for n in range(9, 1, -1)], "s")

FUNCTIONS: dict[str, str] = {
    **{f"ts_{n}_f64": _library(n) for n in ("log", "log2", "log1p", "exp2", "expm1")},
    **{f"ts_{n}_f64": _library(n) for n in ("tanh", "erf")},
    "ts_pow2_f64": _F
    + """double ts_pow2_f64(int64_t n) {
  return ts_double((n + 1023) << 52);
}
""",
    "ts_exp_f64": _F
    + f"""double ts_exp_f64(double x) {{
  double c = x > 710.0 ? 710.0 : x;
  c = c < -746.0 ? -746.0 : c;
  double t = TS_FMAD(c, 0x1.71547652b82fep+0, 0x1.8p+52); /* nearest integer, by its last bits */
  double n = t - 0x1.8p+52;
  double r = TS_FMAD(n, -0x1.62e42fee00000p-1, c);
  r = TS_FMAD(n, -0x1.a39ef35793c76p-33, r);
{_EXP}
  p = 1.0 + TS_FMAD(p, r * r, r);
  int64_t k = ts_bits64(t) - 0x4338000000000000;
  int64_t h = k >> 1; /* two factors, so that results reach denormals and infinity */
  return x != x ? x : p * ts_pow2_f64(h) * ts_pow2_f64(k - h);
}}
""",
    "ts_wave_f64": _F
    + f"""double ts_wave_f64(double x, int64_t quarters) {{
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
  {{
  {_SIN.replace(chr(10), chr(10) + "  ")}
    sine = TS_FMAD(p * s, r, r);
  }}
  {{
  {_COS.replace(chr(10), chr(10) + "  ")}
    cosine = TS_FMAD(s * s, p, TS_FMAD(s, -0.5, 1.0));
  }}
  int64_t q = ts_bits64(t) + quarters;
  double y = q & 1 ? cosine : sine;
  return q & 2 ? -y : y;
}}
""",
    "ts_sin_f64": "TS_SIMD double sin(double);\n"
    + _F
    + """double ts_sin_f64(double x) {
  double near = __builtin_fabs(x) < 0x1p+20 ? x : 0.0;
  double far = __builtin_sin(x);
  double y = ts_wave_f64(near, 0);
  return __builtin_fabs(x) < 0x1p+20 ? (x == 0.0 ? x : y) : far;
}
""",
    "ts_cos_f64": "TS_SIMD double cos(double);\n"
    + _F
    + """double ts_cos_f64(double x) {
  double near = __builtin_fabs(x) < 0x1p+20 ? x : 0.0;
  double far = __builtin_cos(x);
  double y = ts_wave_f64(near, 1);
  return __builtin_fabs(x) < 0x1p+20 ? y : far;
}
""",
    "ts_sigmoid_f64": _F
    + """double ts_sigmoid_f64(double x) {
  return 1.0 / (1.0 + ts_exp_f64(-x));
}
""",
}
