/* A stand-in for libcuda.so.1 that records launches, so that the launcher's packing can be tested
   on a machine without a GPU. The first byte of a "cubin" is its kernels' parameter count. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned char parameters; char name[64]; int shared_limit; } Function;
typedef struct {
  char name[64];
  unsigned grid[3], block[3], shared, parameters;
  uint64_t stream, values[32];
} Launch;

static Launch log_[64];
static int count_, fail_with_, context_;

int fake_count(void) { return count_; }
Launch *fake_launch(int i) { return &log_[i]; }
void fake_reset(int fail_with, int context) {
  count_ = 0;
  fail_with_ = fail_with;
  context_ = context;
}

int cuGetErrorString(int code, const char **text) {
  *text = code == 1 ? "invalid argument" : code == 201 ? "invalid device context" : "other";
  return 0;
}
int cuCtxGetCurrent(void **context) { *context = context_ ? &context_ : 0; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &context_; return 0; }
int cuCtxSetCurrent(void *context) { context_ = 1; return 0; }
int cuModuleLoadData(void **module, const void *image) {
  unsigned char *copy = malloc(1);
  *copy = *(const unsigned char *)image;
  if (*copy == 255) return 1;
  *module = copy;
  return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  Function *made = calloc(1, sizeof(Function));
  made->parameters = *(unsigned char *)module;
  strncpy(made->name, name, 63);
  *function = made;
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  if (attribute != 8 || value > 227 * 1024) return 1;
  ((Function *)function)->shared_limit = value;
  return 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
  Function *f = function;
  if (!context_) return 201;
  if (fail_with_) return fail_with_;
  if (extra || (shared > 48 * 1024 && (int)shared > f->shared_limit)) return 1;
  Launch *entry = &log_[__atomic_fetch_add(&count_, 1, __ATOMIC_RELAXED) % 64];
  memcpy(entry->name, f->name, 64);
  entry->grid[0] = gx; entry->grid[1] = gy; entry->grid[2] = gz;
  entry->block[0] = bx; entry->block[1] = by; entry->block[2] = bz;
  entry->shared = shared;
  entry->stream = (uint64_t)stream;
  entry->parameters = f->parameters;
  for (int i = 0; i < f->parameters; i++) entry->values[i] = *(uint64_t *)parameters[i];
  return 0;
}
